"""Keeps the demo running: keys slow and heal ranks, and Fleet's answers are printed."""

import contextlib
import os
import random
import select
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from ingero.cli.show.table import coloured
from ingero.cli.show.verdicts import loss_text
from ingero.contract.verdict import Verdict, VerdictState

if TYPE_CHECKING:
    from ingero.sim.cluster import DemoCluster

EXCESS: Final = 0.15
POLL_S: Final = 0.5


def keep_running(
    cluster: "DemoCluster", ranks: int, slow: list[int], url: str, say: Callable[[str], None]
) -> None:
    """Run until Ctrl-C or `q`; `slow` are the ranks that are slow already."""
    say(f"\nstill running: {url}   `ingero top --fleet {url.rstrip('/')}`")
    has_keys = sys.stdin.isatty()
    chance, named = random.Random(), set(slow)  # noqa: S311 - any rank will do
    with contextlib.suppress(KeyboardInterrupt), _single_keys(has_keys):
        say("s: slow a rank   h: heal one   q: end" if has_keys else "Ctrl-C ends it")
        while True:
            key = _key(has_keys)
            if key == "q":
                return
            fast = [each for each in range(ranks) if each not in slow]
            if key == "s" and fast:
                rank = chance.choice(fast)
                slow.append(rank)
                cluster.slow_rank(rank, EXCESS)
                say(f"{_clock()}  the GPU of rank {rank} now takes {EXCESS:.0%} longer")
            if key == "h" and slow:
                rank = slow.pop(0)
                cluster.heal_rank(rank)
                say(f"{_clock()}  rank {rank} is as fast as the others again")
            named = _tell(cluster, named, say)


def _tell(cluster: "DemoCluster", named: set[int], say: Callable[[str], None]) -> set[int]:
    """Print who is newly named and who no longer is; return who is named now."""
    seen = cluster.judged()
    if seen is None:
        return named
    found: dict[int, Verdict] = {v.rank: v for v in seen.verdicts if v.rank is not None}
    verdicts = {
        rank: verdict
        for rank, verdict in found.items()
        if verdict.state is VerdictState.STRAGGLER
        or (rank in named and verdict.state is VerdictState.RECOVERING)
    }
    for rank in sorted(verdicts.keys() - named):
        who = coloured(f"rank {rank} on {verdicts[rank].node} is slow", "31;1")
        say(f"{_clock()}  {who}: the job loses {loss_text(verdicts[rank])}")
    for rank in sorted(named - verdicts.keys()):
        say(f"{_clock()}  {coloured(f'rank {rank} is not slow any more', '32')}")
    return set(verdicts)


def _clock() -> str:
    return time.strftime("%H:%M:%S")


def _key(has_keys: bool) -> str:
    """Wait half a second for a key; return an empty text if none was pressed.

    The descriptor is read directly, because a buffer would hold keys that were pressed quickly. If
    the terminal is gone, the demo ends.
    """
    if not has_keys:
        time.sleep(POLL_S)
        return ""
    ready, _, _ = select.select([sys.stdin], [], [], POLL_S)
    return (os.read(sys.stdin.fileno(), 1).decode(errors="replace").lower() or "q") if ready else ""


@contextlib.contextmanager
def _single_keys(has_keys: bool) -> Iterator[None]:
    """Let keys arrive one by one, without Enter."""
    if not has_keys:
        yield
        return
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)
    try:
        tty.setcbreak(sys.stdin, termios.TCSANOW)  # keys that were pressed before count
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)
