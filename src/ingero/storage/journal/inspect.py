"""Inspection of a whole journal: what is not loaded yet, what is damaged, what can be recovered."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

from ingero.storage.journal.frames import (
    FRAME_HEAD,
    FRAME_MAGIC,
    MAX_BODY_BYTES,
    SEGMENT_HEAD,
    Frame,
    Segment,
    decode_frame,
    frame_bytes,
    list_segments,
)


@dataclass(frozen=True, slots=True)
class Inspection:
    """The result of scanning the whole journal."""

    segments: tuple[Segment, ...]
    last_seq: int
    frames: int
    waiting_bytes: int  # size of those frames
    dropped_bytes: int  # torn tails: written but never acknowledged
    problems: tuple[str, ...]


def inspect_journal(directory: Path, applied_seq: int) -> Inspection:
    """Read every request that is not in the database yet, and report those that cannot be read."""
    segments = list_segments(directory)
    problems = []
    frames = waiting = dropped = 0
    expected = applied_seq + 1
    for segment, following in zip_longest(segments, segments[1:]):
        if following and following.first_seq <= expected:
            continue  # all of it has been applied
        limit = (
            following.first_seq if following and following.number == segment.number + 1 else None
        )
        if segment.first_seq > expected:
            problems.append(
                f"requests {expected} to {segment.first_seq - 1} are missing before "
                f"{segment.path.name}"
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
    """Reads the frames of one segment one by one."""

    def __init__(self, data: bytes, first_seq: int) -> None:
        self.data = data
        self.offset = SEGMENT_HEAD.size
        self.expected = first_seq

    def next(self, limit: int | None) -> Frame | None:
        """Return the next frame below sequence `limit`, or None where nothing more can be read."""
        if limit is not None and self.expected >= limit:
            return None
        frame = decode_frame(self.data, self.offset)
        if frame is None or frame.seq != self.expected:
            return None
        self.offset += frame_bytes(frame.body)
        self.expected += 1
        return frame

    def lost(self, limit: int | None) -> int | None:
        """Return the last sequence that was acknowledged but cannot be read here.

        None means that the segment ends cleanly or with a torn tail.
        """
        if limit is not None and self.expected >= limit:
            return None
        at = self.data.find(FRAME_MAGIC, self.offset)
        while at >= 0:
            frame = decode_frame(self.data, at)
            if frame is not None and frame.seq > self.expected and frame.synced >= self.expected:
                return min(frame.seq - 1, frame.synced)
            at = self.data.find(FRAME_MAGIC, at + 1)
        return None if limit is None else limit - 1


def _torn_bytes(data: bytes, offset: int) -> int:
    """Return the size of an unfinished write after the last complete frame."""
    frame = decode_frame(data, offset)  # a frame left from the segment's earlier use is not torn
    return 0 if frame is not None else len(data[offset : offset + (1 << 20)].rstrip(b"\0"))


def recoverable_frames(directory: Path, applied_seq: int) -> Iterator[Frame]:
    """Yield every readable request that is not in the database, also from damaged segments."""
    found: dict[int, tuple[Path, int]] = {}  # the later segment has the acknowledged version
    for path in sorted(directory.glob("journal-*")):
        data = path.read_bytes()
        at = data.find(FRAME_MAGIC, SEGMENT_HEAD.size)
        while at >= 0:
            frame = decode_frame(data, at)
            if frame is not None and frame.seq > applied_seq:
                found[frame.seq] = (path, at)
            at = data.find(FRAME_MAGIC, at + (frame_bytes(frame.body) if frame else 1))
    for _, (path, at) in sorted(found.items()):
        with path.open("rb") as file:
            file.seek(at)
            frame = decode_frame(file.read(FRAME_HEAD.size + MAX_BODY_BYTES), 0)
        if frame is not None:
            yield frame
