"""What a part of the agent tells its supervisor: that it runs, what is off, and its metrics.

Both halves: one JSON object per line, over a socket that the part inherits.
"""

import contextlib
import socket
from typing import Final

import msgspec

BEAT_S: Final = 5.0


class Beat(msgspec.Struct, omit_defaults=True):
    """A sign of life. `notes` say what is off in this part, and why."""

    notes: list[str] = []
    metrics: str = ""
    addresses: dict[str, str] = {}


class PartLink:
    """The part's end."""

    def __init__(self, descriptor: int) -> None:
        self._socket = socket.socket(fileno=descriptor)
        self._socket.settimeout(BEAT_S)

    def beat(self, beat: Beat) -> None:
        """Send a sign of life; a supervisor that has gone is no error here."""
        with contextlib.suppress(OSError):
            self._socket.sendall(msgspec.json.encode(beat) + b"\n")


def decode_beat(line: bytes) -> Beat | None:
    """Return what a part sent; None where it cannot be read."""
    try:
        return msgspec.json.decode(line, type=Beat)
    except msgspec.DecodeError:
        return None
