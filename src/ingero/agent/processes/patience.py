"""Reads of other processes' memory, with a deadline.

A process may map files of its own file system (FUSE), which need not answer. A reader of such
memory waits until that process ends, and only the end of the reader stops the wait. Reads therefore
run in a thread, which is left behind when it takes too long.
"""

import threading
import time
from collections.abc import Callable
from typing import Final, TypeVar

from ingero.agent.host.deadline import Call
from ingero.errors import Unavailable

STACK_S: Final = 0.5  # a stack takes a millisecond
PAUSE_S: Final = 10.0  # without reads from a user whose memory did not answer
MAX_HANGING: Final = 32  # threads, of all users
MAX_HANGING_PER_USER: Final = 2
T = TypeVar("T")


class Patience:
    """Runs reads, and gives up those that do not end.

    `unanswered` counts the reads that were given up, and `refusals` those that were not begun.
    """

    def __init__(self) -> None:
        self.unanswered, self.refusals = 0, 0
        self._lock = threading.Lock()
        self._hanging: list[tuple[int, float, threading.Event]] = []  # user and since when

    def call(self, uid: int, work: Callable[[], T], answer_s: float = STACK_S) -> tuple[T, float]:
        """Return what `work` returns and the CPU seconds it took.

        Raises Unavailable when it takes too long, or another read of the user just did.
        """
        if not self._allows(uid, time.monotonic()):
            self.refusals += 1
            raise Unavailable("other memory of its user did not answer")
        read = Call(work)
        if not read.ends_within("read memory", answer_s):
            self.unanswered += 1
            with self._lock:
                self._hanging.append((uid, time.monotonic(), read.done))
            raise Unavailable(f"its memory did not answer within {answer_s:g} s")
        return read.result(), read.cpu_s

    def _allows(self, uid: int, now_s: float) -> bool:
        with self._lock:
            self._hanging = [
                (user, since_s, done)
                for user, since_s, done in self._hanging
                if not done.is_set() or now_s - since_s < PAUSE_S
            ]
            own = [since_s for user, since_s, _ in self._hanging if user == uid]
            is_pausing = any(now_s - since_s < PAUSE_S for since_s in own)
            has_room = len(own) < MAX_HANGING_PER_USER and len(self._hanging) < MAX_HANGING
            return has_room and not is_pausing
