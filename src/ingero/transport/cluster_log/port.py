"""The cluster log as Fleet uses it: append, read after, keep and fetch a snapshot.

The log gives each entry a position, a number without gaps and a time that never steps back.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

import msgspec

BEGINNING: Final = "0-0"
RETAINED_S: Final = 120.0  # for how long entries can be read
PAUSED_S: Final = 3  # a log without a tick for longer was away, or is new
SLOWED: Final = 0.9  # how fast a clock goes that is ahead of the engine's, which stepped back
RESUME_S: Final = 2  # then replicas have this long to tell what they know, before the next tick


class Appended(NamedTuple):
    """One entry as it was read."""

    position: str
    number: int
    at_s: float  # Unix time, by the clock of the log
    body: bytes


class Snapshot(msgspec.Struct, frozen=True):
    """State after the entry at `position`."""

    position: str
    number: int
    content: bytes


class ClusterLog(Protocol):
    """What Fleet needs of a log; every call raises Unavailable while it cannot be reached."""

    async def append(self, bodies: Sequence[bytes], tick: bytes | None) -> float:
        """Append entries in this order, then the tick if a second has passed since the last one.

        Returns the time of the log. After an error some of them may have been appended.
        """

    async def read_after(self, position: str, wait_s: float) -> list[Appended]:
        """Return entries after a position, at least one if there is any within `wait_s`."""

    async def put_snapshot(self, snapshot: Snapshot) -> None:
        """Store a snapshot in place of the last one."""

    async def get_snapshot(self) -> Snapshot | None:
        """Return the last snapshot that was stored whole; raises MalformedInput or TooLarge."""

    async def close(self) -> None:
        """Close the connections."""
