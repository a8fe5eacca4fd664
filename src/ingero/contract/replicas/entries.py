"""Entries of the cluster log: what replicas of Fleet tell each other, in one order for all.

An entry that cannot be read is skipped by every replica alike, so that all stay equal.
"""

import zlib
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec

from ingero.contract.fleet_api import Limits
from ingero.contract.push.decode import NodeReport
from ingero.contract.silence import LiftRequest, Silence
from ingero.errors import MalformedInput, TooLarge

LOG_VERSION: Final = 1
MAX_ENTRY_BYTES: Final = 8 << 20
MAX_UNPACKED_BYTES: Final = 64 << 20  # of the measurements in one entry
MAX_NAME: Final = 128
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=MAX_NAME, pattern=r"\A[!-~]+\Z")]
Place = Annotated[str, msgspec.Meta(min_length=1, max_length=253)]


class Named(msgspec.Struct, frozen=True, gc=False):
    """The whole report of a node: its first one, or one with another job, mode or GPU."""

    report: NodeReport
    age_ms: int
    pushes: int


class Rows(msgspec.Struct, frozen=True, tag="rows"):
    """Reports that one replica received from nodes of a cluster; `packed` as in `rows.py`."""

    author: Name
    cluster: Place
    packed: bytes = b""
    named: tuple[Named, ...] = ()


class Measured(msgspec.Struct, frozen=True, tag="measured"):
    """Pushes with measurements, packed by `pack_bodies`.

    `batch` counts up: an entry whose reply was lost is appended again, and counts once.
    """

    author: Name
    batch: int
    packed: bytes


class Tick(msgspec.Struct, frozen=True, tag="tick"):
    """A second has passed by the clock of the log; every replica advances everything."""

    author: Name


class Here(msgspec.Struct, frozen=True, tag="here"):
    """A replica is alive; `digests` are those of its last ticks, by time in milliseconds."""

    author: Name
    rules: str  # a digest of everything that must be the same in all replicas
    is_ready: bool
    digests: dict[int, bytes] = {}
    process: int = 0  # tells two processes of one name apart; higher for one that began later


class SilenceBegun(msgspec.Struct, frozen=True, tag="silence"):
    """An operator started a silence at one of the replicas."""

    silence: Silence


class SilenceLifted(msgspec.Struct, frozen=True, tag="lift"):
    """An operator lifted a silence at one of the replicas."""

    lifted: LiftRequest


class LimitsSet(msgspec.Struct, frozen=True, tag="limits"):
    """An operator changed the limits of detection."""

    limits: Limits


class Said(msgspec.Struct, frozen=True, tag="said"):
    """A replica delivered verdict records (by the time of their tick), or an alert."""

    author: Name
    records_ms: tuple[int, ...] = ()
    alerts: tuple[tuple[str, str, str], ...] = ()  # target, episode, kind


class Kept(msgspec.Struct, frozen=True, tag="kept"):
    """A replica stored a snapshot of the state at `position`."""

    author: Name
    position: str


Entry = Rows | Measured | Tick | Here | SilenceBegun | SilenceLifted | LimitsSet | Said | Kept
_DECODER: Final = msgspec.msgpack.Decoder(Entry)
_BODIES: Final = msgspec.msgpack.Decoder(list[tuple[str, bytes]])
encode_entry: Final = msgspec.msgpack.Encoder().encode


def decode_entry(data: bytes) -> Entry:
    """Read one entry; raise MalformedInput or TooLarge."""
    if len(data) > MAX_ENTRY_BYTES:
        raise TooLarge(f"an entry of {len(data)} bytes is longer than {MAX_ENTRY_BYTES}")
    try:
        entry: Entry = _DECODER.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise MalformedInput(f"not an entry of the cluster log: {error}") from None
    return entry


def pack_bodies(bodies: Sequence[tuple[str, bytes]]) -> bytes:
    """Return pushes with their clusters, compressed: pushes of one second resemble each other."""
    return zlib.compress(msgspec.msgpack.encode(bodies), 1)


def unpack_bodies(packed: bytes) -> list[tuple[str, bytes]]:
    """Return what was packed; raise MalformedInput or TooLarge."""
    unpacker = zlib.decompressobj()
    try:
        plain = unpacker.decompress(packed, MAX_UNPACKED_BYTES)
        if unpacker.unconsumed_tail:
            raise TooLarge(f"measurements are longer than {MAX_UNPACKED_BYTES} bytes")
        return _BODIES.decode(plain)
    except (zlib.error, msgspec.DecodeError) as error:
        raise MalformedInput(f"not measurements of the cluster log: {error}") from None
