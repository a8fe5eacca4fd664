"""Why a request is in quarantine."""

from typing import Final

UNREADABLE: Final = "unreadable"  # it cannot be decoded; another version accepted it
REFUSED: Final = "refused"  # the database does not accept its values
CRASHED: Final = "crashed"  # the store process ended whenever it was loaded
REASONS: Final = (UNREADABLE, REFUSED, CRASHED)
