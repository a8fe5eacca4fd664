"""What one user of the machine may send to the annotation socket: connections, lines and bytes."""

from collections.abc import Sequence
from typing import Final

from ingero.agent.processes.budget import UserBudget
from ingero.core import crowd

MAX_CONNECTIONS: Final = 256
MAX_USER_CONNECTIONS: Final = 64
MAX_ACCEPTS: Final = 256  # per poll, so that somebody who keeps connecting does not hold it
USER_LINES_PER_S: Final = 2_000
USER_BYTES_PER_S: Final = 1 << 20
_SAVED_S: Final = 2.0  # unused amounts of this many seconds are saved up


class AnnotationLimits:
    """The shares of each user; `waits` counts polls that skipped a connection over its share."""

    def __init__(self) -> None:
        self._lines = UserBudget(USER_LINES_PER_S, _SAVED_S * USER_LINES_PER_S)
        self._bytes = UserBudget(USER_BYTES_PER_S, _SAVED_S * USER_BYTES_PER_S)

    @property
    def waits(self) -> int:
        return self._bytes.refusals

    def may_read(self, uid: int, now_s: float) -> bool:
        """Return whether bytes of a user may be read now; a refusal is counted."""
        return self._bytes.allows(uid, now_s)

    def count_bytes(self, uid: int, count: int, now_s: float) -> None:
        """Subtract bytes that were read from the share of their user."""
        self._bytes.spend(uid, count, now_s)

    def take_line(self, uid: int, now_s: float) -> bool:
        """Return whether a line of a user is within the user's share, and subtract it."""
        if not self._lines.allows(uid, now_s):
            return False
        self._lines.spend(uid, 1, now_s)
        return True


def place_for(uid: int, open_uids: Sequence[int]) -> int | None:
    """Decide about a new connection of a user, given the users of the open ones, oldest first.

    Returns the index of the connection that must be closed for it, `len(open_uids)` if none must,
    and None if the new one is refused.
    """
    if open_uids.count(uid) >= MAX_USER_CONNECTIONS:
        return None
    return crowd.place_for(uid, open_uids, MAX_CONNECTIONS)
