"""Messages between Echo's parent and its store process: msgpack on a socket pair, each with its length in front."""

import struct
from typing import Any, Final, TypeAlias

import msgspec

LENGTH: Final = struct.Struct("<I")
REPLACE_ME: Final = 75  # exit status: memory is used up or the database gave up; nothing is lost


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True):
    """What the store process is started with."""

    database: str
    journal: str
    address_space_bytes: int
    threads: int
    retention_s: float
    rollup_retention_s: float
    max_database_bytes: int


class Durable(msgspec.Struct, frozen=True, tag=True):
    """Everything up to `seq` may be loaded; `now` asks for it at once."""

    seq: int
    now: bool = False


class Ask(msgspec.Struct, frozen=True, tag=True):
    """A question that gets an Answer with the same id."""

    id: int
    what: str
    args: dict[str, Any]


class Stop(msgspec.Struct, frozen=True, tag=True):
    """Load what is durable, checkpoint, leave."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The database is open."""

    applied_seq: int
    pid: int


class Progress(msgspec.Struct, frozen=True, tag=True):
    """After a load or a change of state; counters run from the start of the process."""

    applied_seq: int
    events: int = 0
    duplicates: int = 0
    unreadable: int = 0
    deleted: int = 0
    problem: str = ""


class Answer(msgspec.Struct, frozen=True, tag=True):
    """`error` is a code; empty means that `value` is the answer."""

    id: int
    value: Any = None
    error: str = ""
    message: str = ""


ToStore: TypeAlias = Durable | Ask | Stop
ToParent: TypeAlias = Ready | Progress | Answer

_encode = msgspec.msgpack.Encoder().encode
decode_to_store = msgspec.msgpack.Decoder(ToStore).decode
decode_to_parent = msgspec.msgpack.Decoder(ToParent).decode


def encode(message: ToStore | ToParent) -> bytes:
    """One message with its length."""
    body = _encode(message)
    return LENGTH.pack(len(body)) + body
