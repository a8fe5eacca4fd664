"""Calls with a deadline: a driver or a process that does not answer holds nobody up."""

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from ingero.errors import Unavailable

DRIVER_S: Final = 5.0  # a driver that answers at all answers within milliseconds
T = TypeVar("T")


@dataclass(slots=True)
class Call(Generic[T]):
    """One call in a thread, which cannot be stopped, only left behind."""

    work: Callable[[], T]
    done: threading.Event = field(default_factory=threading.Event)
    cpu_s: float = 0.0
    _result: T | None = None
    _error: BaseException | None = None

    def ends_within(self, name: str, seconds: float) -> bool:
        """Start the call in a thread of this name, and return whether it ended in time."""
        threading.Thread(target=self._run, name=name, daemon=True).start()
        return self.done.wait(seconds)

    def result(self) -> T:
        """Return or raise what the call did; it must have ended."""
        if self._error is not None:
            raise self._error
        return self._result  # type: ignore[return-value]  # set where there is no error

    def _run(self) -> None:
        try:
            self._result = self.work()
        except BaseException as error:  # noqa: BLE001 - raised again in the caller
            self._error = error
        self.cpu_s = time.thread_time()
        self.done.set()


class Deadline:
    """Runs one call at a time. While one hangs, further calls are refused at once."""

    def __init__(self, what: str, seconds: float = DRIVER_S) -> None:
        self._what, self._seconds = what, seconds
        self._hanging: threading.Event | None = None

    def call(self, work: Callable[[], T]) -> T:
        """Return what `work` returns; raise Unavailable if that takes too long."""
        if self._hanging is not None and not self._hanging.is_set():
            raise Unavailable(f"{self._what} does not answer: an earlier question still hangs")
        asked = Call(work)
        if not asked.ends_within(f"ask {self._what}", self._seconds):
            self._hanging = asked.done
            raise Unavailable(
                f"{self._what} does not answer within {self._seconds:g} s; see `dmesg` for Xid "
                "errors, and reset or restart the node if it stays so"
            )
        self._hanging = None
        return asked.result()
