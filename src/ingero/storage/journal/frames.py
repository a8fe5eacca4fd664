"""The bytes of the ingest journal: numbered segment files that hold one frame per request.

A segment starts with its number and first sequence; frames follow without a gap, and their
sequences count up by one. Each frame also states up to which sequence everything was durable when
it was written. So a reader can tell a torn tail (never acknowledged, dropped) from damage
(acknowledged but unreadable, an error).
"""

import hashlib
import struct
import zlib
from pathlib import Path
from typing import Final, NamedTuple

from ingero.errors import StoreDamaged

DIGEST_BYTES: Final = 16
MAX_BODY_BYTES: Final = 16 * 1024 * 1024
SEGMENT_MAGIC: Final = b"INGEROJ1"
FRAME_MAGIC: Final = b"EJ1\n"
# magic, number, first sequence, CRC of the 24 bytes before it
SEGMENT_HEAD: Final = struct.Struct("<8sQQI36x")
# magic, body length, CRC of the rest, then the fields of Frame
FRAME_HEAD: Final = struct.Struct("<4sII QQqI")
_FRAME_FIELDS: Final = struct.Struct("<QQqI")


class Frame(NamedTuple):
    """One request; `synced` is the last sequence that was durable when this one was written."""

    seq: int
    synced: int
    received_us: int
    signal: int
    body: bytes


class Segment(NamedTuple):
    """One file of the journal, and the sequence of the first request in it."""

    path: Path
    number: int
    first_seq: int


def request_digest(signal: int, body: bytes) -> bytes:
    """Return the digest of a request's content; a retry has the same one."""
    return hashlib.blake2b(body, digest_size=DIGEST_BYTES, salt=bytes([signal])).digest()


def encode_frame(frame: Frame) -> bytes:
    """Encode one request."""
    fields = _FRAME_FIELDS.pack(frame.seq, frame.synced, frame.received_us, frame.signal)
    crc = zlib.crc32(frame.body, zlib.crc32(fields))
    return FRAME_MAGIC + struct.pack("<II", len(frame.body), crc) + fields + frame.body


def decode_frame(data: bytes | memoryview, offset: int) -> Frame | None:
    """Return the frame at `offset`, or None when it is incomplete or its CRC is wrong."""
    if offset + FRAME_HEAD.size > len(data):
        return None
    magic, length, crc, seq, synced, received_us, signal = FRAME_HEAD.unpack_from(data, offset)
    start = offset + FRAME_HEAD.size
    if magic != FRAME_MAGIC or length > MAX_BODY_BYTES or start + length > len(data):
        return None
    body = bytes(data[start : start + length])
    if zlib.crc32(body, zlib.crc32(data[offset + 12 : start])) != crc:
        return None
    return Frame(seq, synced, received_us, signal, body)


def frame_bytes(body: bytes) -> int:
    """Return how many bytes a request takes in the journal."""
    return FRAME_HEAD.size + len(body)


def encode_head(number: int, first_seq: int) -> bytes:
    """Encode the header of a segment."""
    head = struct.pack("<8sQQ", SEGMENT_MAGIC, number, first_seq)
    return SEGMENT_HEAD.pack(SEGMENT_MAGIC, number, first_seq, zlib.crc32(head))


def read_segment(path: Path) -> Segment:
    """Read the header of a segment; raise StoreDamaged when it is not sound."""
    with path.open("rb") as file:
        head = file.read(SEGMENT_HEAD.size)
    if len(head) == SEGMENT_HEAD.size:
        magic, number, first_seq, crc = SEGMENT_HEAD.unpack(head)
        if magic == SEGMENT_MAGIC and zlib.crc32(head[:24]) == crc:
            return Segment(path, number, first_seq)
    raise StoreDamaged(
        f"{path}: the header of this journal segment is damaged; run `ingero-echo verify --repair`"
    )


def segment_path(directory: Path, number: int) -> Path:
    """Return the path of a segment."""
    return directory / f"journal-{number:08d}"


def list_segments(directory: Path) -> list[Segment]:
    """Return all segments in order; raise StoreDamaged for one whose header cannot be read."""
    return [read_segment(path) for path in sorted(directory.glob("journal-*"))]
