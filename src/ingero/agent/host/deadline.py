"""Calls of a driver with a deadline: a driver that hangs is a finding and holds nobody up."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from ingero.errors import Unavailable

DRIVER_S: Final = 5.0  # a driver that answers at all answers within milliseconds
T = TypeVar("T")


@dataclass(slots=True)
class _Call(Generic[T]):
    """One call; its thread cannot be stopped, only left behind."""

    work: Callable[[], T]
    done: threading.Event = field(default_factory=threading.Event)
    result: T | None = None
    error: BaseException | None = None

    def run(self) -> None:
        try:
            self.result = self.work()
        except BaseException as error:  # noqa: BLE001 - raised again in the caller
            self.error = error
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
        asked = _Call(work)
        threading.Thread(target=asked.run, name=f"ask {self._what}", daemon=True).start()
        if not asked.done.wait(self._seconds):
            self._hanging = asked.done
            raise Unavailable(
                f"{self._what} does not answer within {self._seconds:g} s; see `dmesg` for Xid "
                "errors, and reset or restart the node if it stays so"
            )
        self._hanging = None
        if asked.error is not None:
            raise asked.error
        return asked.result  # type: ignore[return-value]  # set where there is no error
