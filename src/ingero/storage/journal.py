"""The ingest journal: requests in preallocated segments, each framed with a CRC, durable before they are acknowledged.

A segment starts with its number and first sequence; frames follow without a gap, their sequences count up by one. A
frame also says up to which sequence everything was already synced when it was written. So a reader can tell a torn
tail (never acknowledged: dropped) from damage (acknowledged, unreadable: an error). Segments whose requests are all in
the database are used again, so the disk space is claimed once and a sync never has to change file metadata.
"""

import contextlib
import os
import struct
import threading
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Final, NamedTuple

from ingero.errors import StoreDamaged, StoreError, StoreFull
from ingero.files import sync_directory

SEGMENT_BYTES: Final = 64 * 1024 * 1024
MAX_BODY_BYTES: Final = 16 * 1024 * 1024
SEGMENT_MAGIC: Final = b"INGEROJ1"
FRAME_MAGIC: Final = b"EJ1\n"
_SEGMENT_HEAD: Final = struct.Struct(
    "<8sQQI36x"
)  # magic, number, first sequence, CRC of the 24 bytes before it
_FRAME_HEAD: Final = struct.Struct(
    "<4sII QQqI"
)  # magic, body length, CRC of the rest, then the fields of Frame
_FRAME_FIELDS: Final = struct.Struct("<QQqI")
_ZEROS: Final = bytes(1024 * 1024)
_WINDOW_BYTES: Final = 1024 * 1024  # read at a time; larger frames are read on their own


class Frame(NamedTuple):
    """One request; `synced` is the last sequence known to be durable when this one was written."""

    seq: int
    synced: int
    received_us: int
    signal: int
    body: bytes


class Segment(NamedTuple):
    """One file of the journal and the first sequence it may hold."""

    path: Path
    number: int
    first_seq: int


@dataclass(frozen=True, slots=True)
class Inspection:
    """What a scan of the whole journal found."""

    segments: tuple[Segment, ...]
    last_seq: int
    frames: int
    waiting_bytes: int  # of those frames
    dropped_bytes: int  # torn tails: written, never acknowledged
    problems: tuple[str, ...]


def encode_frame(frame: Frame) -> bytes:
    """The bytes of one frame."""
    fields = _FRAME_FIELDS.pack(frame.seq, frame.synced, frame.received_us, frame.signal)
    crc = zlib.crc32(frame.body, zlib.crc32(fields))
    return FRAME_MAGIC + struct.pack("<II", len(frame.body), crc) + fields + frame.body


def decode_frame(data: bytes | memoryview, offset: int) -> Frame | None:
    """The frame at `offset`, or None when there is no whole and sound one."""
    if offset + _FRAME_HEAD.size > len(data):
        return None
    magic, length, crc, seq, synced, received_us, signal = _FRAME_HEAD.unpack_from(data, offset)
    start = offset + _FRAME_HEAD.size
    if magic != FRAME_MAGIC or length > MAX_BODY_BYTES or start + length > len(data):
        return None
    body = bytes(data[start : start + length])
    if zlib.crc32(body, zlib.crc32(data[offset + 12 : start])) != crc:
        return None
    return Frame(seq, synced, received_us, signal, body)


def frame_bytes(body: bytes) -> int:
    """What a request takes in the journal."""
    return _FRAME_HEAD.size + len(body)


def list_segments(directory: Path) -> list[Segment]:
    """All segments in order; raises StoreDamaged for one whose header cannot be read."""
    segments = []
    for path in sorted(directory.glob("journal-*")):
        segments.append(Segment(path, *_decode_head(path, _read_head(path))))
    return segments


def inspect_journal(directory: Path, applied_seq: int) -> Inspection:
    """Read everything that is not in the database yet and say what cannot be read."""
    segments = list_segments(directory)
    problems = []
    frames = waiting = dropped = 0
    expected = applied_seq + 1
    for segment, following in zip_longest(segments, segments[1:]):
        if following and following.first_seq <= expected:
            continue  # everything in it has been applied
        limit = (
            following.first_seq if following and following.number == segment.number + 1 else None
        )
        if segment.first_seq > expected:
            problems.append(
                f"requests {expected} to {segment.first_seq - 1} are missing before {segment.path.name}"
            )
            expected = segment.first_seq
        data = segment.path.read_bytes()
        scan = _Scan(data, segment.first_seq)
        while frame := scan.next(limit):
            if frame.seq >= expected:
                frames += 1
                waiting += frame_bytes(frame.body)
                expected = frame.seq + 1
        lost = scan.lost(limit)
        if lost is not None and lost >= expected:
            which = f"request {expected}" if lost == expected else f"requests {expected} to {lost}"
            problems.append(
                f"{segment.path.name} is damaged at byte {scan.offset}: {which} cannot be read"
            )
            expected = max(lost + 1, limit or 0)
        dropped += _torn_bytes(data, scan.offset) if following is None else 0
    return Inspection(tuple(segments), expected - 1, frames, waiting, dropped, tuple(problems))


class _Scan:
    """Walks the frames of one segment."""

    def __init__(self, data: bytes, first_seq: int) -> None:
        self.data = data
        self.offset = _SEGMENT_HEAD.size
        self.expected = first_seq

    def next(self, limit: int | None) -> Frame | None:
        """The next frame below sequence `limit`, or None at the end of what can be read."""
        if limit is not None and self.expected >= limit:
            return None
        frame = decode_frame(self.data, self.offset)
        if frame is None or frame.seq != self.expected:
            return None
        self.offset += frame_bytes(frame.body)
        self.expected += 1
        return frame

    def lost(self, limit: int | None) -> int | None:
        """The last sequence that was acknowledged and cannot be read here; None when the end is a clean or torn one."""
        if limit is not None and self.expected >= limit:
            return None
        at = self.data.find(FRAME_MAGIC, self.offset)
        while at >= 0:
            frame = decode_frame(self.data, at)
            if frame is not None and frame.seq > self.expected and frame.synced >= self.expected:
                return min(frame.seq - 1, frame.synced)
            at = self.data.find(FRAME_MAGIC, at + 1)
        return None if limit is None else limit - 1


class JournalReader:
    """Follows the journal from the request after `applied_seq`; never reads past what is durable."""

    def __init__(self, directory: Path, applied_seq: int) -> None:
        self._directory = directory
        self._expected = applied_seq + 1
        self._segment: Segment | None = None
        self._fd = -1
        self._offset = 0

    def read(self, durable_seq: int, max_bytes: int) -> list[Frame]:
        """Requests in order, at least one when there is one; raises StoreDamaged."""
        frames: list[Frame] = []
        size = 0
        while self._expected <= durable_seq and size < max_bytes:
            limit = self._enter_segment(durable_seq)
            window = os.pread(self._fd, _WINDOW_BYTES, self._offset)
            offset = 0
            while self._expected <= limit and size < max_bytes:
                frame = decode_frame(window, offset)
                if frame is None:
                    break
                offset += frame_bytes(frame.body)
                if (
                    frame.seq < self._expected
                    and self._segment
                    and frame.seq >= self._segment.first_seq
                ):
                    continue  # applied before we started
                if frame.seq != self._expected:
                    break
                frames.append(frame)
                size += len(frame.body)
                self._expected += 1
            self._offset += offset
            if offset == 0:
                self._read_large_or_fail(frames)
        return frames

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _read_large_or_fail(self, frames: list[Frame]) -> None:
        frame = decode_frame(os.pread(self._fd, MAX_BODY_BYTES + _FRAME_HEAD.size, self._offset), 0)
        if frame is None or frame.seq != self._expected:
            where = (
                f"{self._segment.path if self._segment else self._directory} at byte {self._offset}"
            )
            raise StoreDamaged(
                f"{where}: request {self._expected} cannot be read; run `ingero-echo verify`"
            )
        frames.append(frame)
        self._offset += frame_bytes(frame.body)
        self._expected += 1

    def _enter_segment(self, durable_seq: int) -> int:
        """Be in the segment that holds the expected request; returns the last sequence to read from it."""
        following = self._following()
        if self._segment is None or (following and following.first_seq <= self._expected):
            fitting = [
                segment
                for segment in list_segments(self._directory)
                if segment.first_seq <= self._expected
            ]
            if not fitting:
                raise StoreDamaged(
                    f"{self._directory}: the segment with request {self._expected} is missing"
                )
            self.close()
            self._segment = fitting[-1]
            self._fd = os.open(self._segment.path, os.O_RDONLY)
            self._offset = _SEGMENT_HEAD.size
            following = self._following()
        return min(durable_seq, following.first_seq - 1) if following else durable_seq

    def _following(self) -> Segment | None:
        if self._segment is None:
            return None
        path = segment_path(self._directory, self._segment.number + 1)
        try:
            head = _read_head(path)
        except FileNotFoundError:
            return None
        return Segment(path, *_decode_head(path, head))


class JournalWriter:
    """Appends groups of requests. One thread writes; another may call `prepare` and `recycle`."""

    def __init__(self, directory: Path, last_seq: int, segment_bytes: int = SEGMENT_BYTES) -> None:
        self._directory = directory
        self._segment_bytes = segment_bytes
        self._spare = directory / "spare"
        self._spare_lock = threading.Lock()
        self._fd = -1
        self._offset = 0
        self.last_seq = last_seq
        self.segments = list_segments(directory)
        self._roll(0)

    def append(self, requests: Sequence[tuple[int, bytes]], received_us: int) -> int:
        """Write `(signal, body)` requests and sync; returns the last sequence. On an error none of them counts."""
        first = self.last_seq + 1
        frames = [
            encode_frame(Frame(first + i, self.last_seq, received_us, signal, body))
            for i, (signal, body) in enumerate(requests)
        ]
        data = b"".join(frames)
        if self._fd < 0 or self._offset + len(data) > self._size:
            self._roll(len(data))
        try:
            written = os.pwrite(self._fd, data, self._offset)
            if written != len(data):
                raise OSError(28, "No space left on device")
            os.fdatasync(self._fd)
        except OSError as error:
            self._abandon()
            raise _cannot_write(self._directory, error) from None
        self._offset += len(data)
        self.last_seq += len(requests)
        return self.last_seq

    def prepare(self) -> None:
        """Have the next segment's space claimed before it is needed; raises StoreFull."""
        with self._spare_lock:
            if not self._spare.exists():
                _claim(self._spare, self._segment_bytes)

    def recycle(self, applied_seq: int) -> int:
        """Give back segments that are wholly in the database; returns how many."""
        given_back = 0
        while len(self.segments) > 1 and self.segments[1].first_seq <= applied_seq + 1:
            oldest = self.segments.pop(0)
            with self._spare_lock:
                if self._spare.exists() or oldest.path.stat().st_size != self._segment_bytes:
                    oldest.path.unlink()
                else:
                    oldest.path.rename(self._spare)
            given_back += 1
        return given_back

    @property
    def size_bytes(self) -> int:
        """Disk space of all segments."""
        return len(self.segments) * self._segment_bytes

    def close(self) -> None:
        self._abandon()

    def _abandon(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _roll(self, needed: int) -> None:
        self._abandon()
        size = max(self._segment_bytes, _SEGMENT_HEAD.size + needed)
        number = self.segments[-1].number + 1 if self.segments else 1
        path = segment_path(self._directory, number)
        with self._spare_lock:
            if size > self._segment_bytes or not self._spare.exists():
                _claim(self._spare, size)
            fd = -1
            try:
                fd = os.open(self._spare, os.O_RDWR)
                os.pwrite(fd, _encode_head(number, self.last_seq + 1), 0)
                os.fdatasync(fd)
                self._spare.rename(path)
                sync_directory(self._directory)
            except OSError as error:
                if fd >= 0:
                    os.close(fd)
                raise _cannot_write(self._directory, error) from None
        self._fd, self._size, self._offset = fd, size, _SEGMENT_HEAD.size
        self.segments.append(Segment(path, number, self.last_seq + 1))


def segment_path(directory: Path, number: int) -> Path:
    """Where a segment lies."""
    return directory / f"journal-{number:08d}"


def recoverable_frames(directory: Path, applied_seq: int) -> Iterator[Frame]:
    """Every sound request that is not in the database, damage or not: what a repair can still save."""
    found: dict[int, tuple[Path, int]] = {}  # a later segment has the acknowledged version
    for path in sorted(directory.glob("journal-*")):
        data = path.read_bytes()
        at = data.find(FRAME_MAGIC, _SEGMENT_HEAD.size)
        while at >= 0:
            frame = decode_frame(data, at)
            if frame is not None and frame.seq > applied_seq:
                found[frame.seq] = (path, at)
            at = data.find(FRAME_MAGIC, at + (frame_bytes(frame.body) if frame else 1))
    for _, (path, at) in sorted(found.items()):
        with path.open("rb") as file:
            file.seek(at)
            frame = decode_frame(file.read(_FRAME_HEAD.size + MAX_BODY_BYTES), 0)
        if frame is not None:
            yield frame


def _encode_head(number: int, first_seq: int) -> bytes:
    head = struct.pack("<8sQQ", SEGMENT_MAGIC, number, first_seq)
    return _SEGMENT_HEAD.pack(SEGMENT_MAGIC, number, first_seq, zlib.crc32(head))


def _decode_head(path: Path, head: bytes) -> tuple[int, int]:
    if len(head) == _SEGMENT_HEAD.size:
        magic, number, first_seq, crc = _SEGMENT_HEAD.unpack(head)
        if magic == SEGMENT_MAGIC and zlib.crc32(head[:24]) == crc:
            return number, first_seq
    raise StoreDamaged(
        f"{path}: the header of this journal segment is damaged; run `ingero-echo verify --repair`"
    )


def _read_head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_SEGMENT_HEAD.size)


def _torn_bytes(data: bytes, offset: int) -> int:
    """How much of an unfinished write lies after the last whole frame."""
    frame = decode_frame(data, offset)  # a stale frame of the segment's former use is not torn
    return 0 if frame is not None else len(data[offset : offset + (1 << 20)].rstrip(b"\0"))


def _claim(path: Path, size: int) -> None:
    """A zero-filled file: its blocks exist, so that writing into it cannot run out of space."""
    temporary = path.with_suffix(".tmp")
    try:
        fd = os.open(temporary, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
        try:
            for offset in range(0, size, len(_ZEROS)):
                wanted = min(len(_ZEROS), size - offset)
                if os.pwrite(fd, _ZEROS[:wanted], offset) != wanted:
                    raise OSError(28, "No space left on device")
            os.fsync(fd)
        finally:
            os.close(fd)
        temporary.rename(path)
    except OSError as error:
        with contextlib.suppress(OSError):  # on a read-only disk there is nothing to remove
            temporary.unlink(missing_ok=True)
        raise _cannot_write(path.parent, error) from None


def _cannot_write(directory: Path, error: OSError) -> StoreError:
    return StoreFull(
        f"cannot write the journal in {directory}: {error.strerror}; new data is refused until this is mended, "
        "everything acknowledged is kept"
    )
