"""Messages between Echo and its store process: msgpack on a socket pair, prefixed by length."""

import struct
from typing import Any, Final, TypeAlias

import msgspec

LENGTH: Final = struct.Struct("<I")
# exit status
REPLACE_ME: Final = 75  # memory is used up or the database failed; no data is lost
RAN_OUT: Final = 76  # as well, while statements ran that may have used it up


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings that the store process is started with."""

    database: str
    journal: str
    quarantine: str
    address_space_bytes: int
    threads: int
    retention_s: float
    rollup_retention_s: float
    max_database_bytes: int
    max_quarantine_bytes: int
    lake: str = ""  # the address of a lake, which then holds the tables instead of the database
    lake_secrets: str = ""  # the file with its secrets, which never stand in a command line


class Durable(msgspec.Struct, frozen=True, tag=True):
    """Requests up to `seq` may be loaded; `now` asks for it at once."""

    seq: int
    now: bool = False


class Ask(msgspec.Struct, frozen=True, tag=True):
    """A question that gets an Answer with the same id."""

    id: int
    what: str
    args: dict[str, Any]


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Load what is durable, checkpoint, exit."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The database is open."""

    applied_seq: int
    pid: int


class Progress(msgspec.Struct, frozen=True, tag=True):
    """Sent after a load or a change of state; counters start with the process."""

    applied_seq: int
    events: int = 0
    duplicates: int = 0
    missing: int = 0
    quarantined: dict[str, int] = {}  # requests set aside, by reason
    in_quarantine: int = 0
    quarantine_bytes: int = 0
    dropped: int = 0  # since the database was created: no room in the quarantine
    deleted: int = 0
    problem: str = ""


class Answer(msgspec.Struct, frozen=True, tag=True):
    """The reply to an Ask; `error` is a code, and if it is empty, `value` is the answer.

    With `is_last` the store process ends because of this question.
    """

    id: int
    value: Any = None
    error: str = ""
    message: str = ""
    is_last: bool = False


ToStore: TypeAlias = Durable | Ask | Stop
ToParent: TypeAlias = Ready | Progress | Answer

_encode = msgspec.msgpack.Encoder().encode
decode_to_store = msgspec.msgpack.Decoder(ToStore).decode
decode_to_parent = msgspec.msgpack.Decoder(ToParent).decode


def encode(message: ToStore | ToParent) -> bytes:
    """Encode one message with its length."""
    body = _encode(message)
    return LENGTH.pack(len(body)) + body
