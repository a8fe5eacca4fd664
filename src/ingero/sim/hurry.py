"""A clock that is late and runs faster, from a sign on, until it has caught up with the real one.

`python -m ingero.sim.hurry FILE BEHIND SPEED MODULE ARGUMENT...` runs a module under such a clock.
All processes of a demo share one, so that the first half minute of a simulated job takes a few
seconds. Nothing else differs: the same code sends, measures and decides, and once the clock has
caught up, it is the real one.
"""

import math
import mmap
import runpy
import selectors
import struct
import sys
import time
from pathlib import Path
from typing import Any, Final

_real_time, _real_monotonic = time.time, time.monotonic
_ONE: Final = struct.Struct("d")


class HurriedClock:
    """A clock that is `behind_s` late; after `go` it is `speed` times as fast as others.

    When it began to hurry is in a file that all processes share.
    """

    def __init__(self, path: Path, behind_s: float, speed: float) -> None:
        self.path, self.behind_s, self.speed = path, behind_s, speed
        if not path.exists():
            path.write_bytes(_ONE.pack(math.inf))
        with path.open("r+b") as file:
            self._shared = mmap.mmap(file.fileno(), _ONE.size)

    def go(self) -> None:
        """Hurry from now on."""
        _ONE.pack_into(self._shared, 0, _real_time())

    def now_s(self) -> float:
        """Return the Unix time that this clock shows."""
        real_s = _real_time()
        return real_s + self.ahead_s(real_s)

    def ahead_s(self, real_s: float) -> float:
        """Return what is added to the real time: a negative number that becomes zero."""
        hurried_s = max(real_s - self._began_s, 0.0)
        return min(0.0, (self.speed - 1) * hurried_s - self.behind_s)

    def wait_s(self, seconds: float) -> float:
        """Return how long a wait of `seconds` of this clock really takes."""
        real_s = _real_time()
        behind_s = -self.ahead_s(real_s)
        if behind_s <= 0 or real_s < self._began_s:
            return seconds
        left_s = behind_s * self.speed / (self.speed - 1)  # of this clock, until it is right
        return min(seconds, left_s) / self.speed + max(seconds - left_s, 0.0)

    @property
    def _began_s(self) -> float:
        began_s: float = _ONE.unpack_from(self._shared)[0]
        return began_s


def hurry(clock: HurriedClock) -> None:
    """Let this process live by a clock; call it before other modules take `time.time` apart."""
    unix_of_monotonic_s = _real_time() - _real_monotonic()

    def monotonic() -> float:
        real_s = _real_monotonic()
        return real_s + clock.ahead_s(real_s + unix_of_monotonic_s)

    time.time, time.monotonic = clock.now_s, monotonic
    time.time_ns = lambda: int(clock.now_s() * 1e9)
    time.monotonic_ns = lambda: int(monotonic() * 1e9)
    select: Final = selectors.EpollSelector.select

    def waiting(self: Any, timeout: float | None = None) -> Any:
        return select(self, timeout if timeout is None else clock.wait_s(timeout))

    selectors.EpollSelector.select = waiting  # type: ignore[method-assign]  # timers of asyncio
    sys.modules["uvloop"] = None  # type: ignore[assignment]  # it has a clock of its own


def main() -> None:
    """Run the module of the command line as `python -m` would."""
    path, behind_s, speed, module, *arguments = sys.argv[1:]
    hurry(HurriedClock(Path(path), float(behind_s), float(speed)))
    sys.argv = [module, *arguments]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
