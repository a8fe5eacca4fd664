"""Reading the journal while it is written."""

import os
from pathlib import Path
from typing import Final

from ingero.errors import StoreDamaged
from ingero.storage.journal.frames import (
    FRAME_HEAD,
    MAX_BODY_BYTES,
    SEGMENT_HEAD,
    Frame,
    Segment,
    decode_frame,
    frame_bytes,
    list_segments,
    read_segment,
    segment_path,
)

_WINDOW_BYTES: Final = 1024 * 1024  # bytes per read; larger frames are read separately


class JournalReader:
    """Reads from the request after `applied_seq` on, and never past what is durable."""

    def __init__(self, directory: Path, applied_seq: int) -> None:
        self._directory = directory
        self._expected = applied_seq + 1
        self._segment: Segment | None = None
        self._fd = -1
        self._offset = 0

    def read(self, durable_seq: int, max_bytes: int) -> list[Frame]:
        """Return the next requests in order, at least one if there is any; raise StoreDamaged."""
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
                    continue  # applied before this reader started
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
        frame = decode_frame(os.pread(self._fd, MAX_BODY_BYTES + FRAME_HEAD.size, self._offset), 0)
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
        """Open the segment of the expected request; return the last sequence to read from it."""
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
            self._offset = SEGMENT_HEAD.size
            following = self._following()
        return min(durable_seq, following.first_seq - 1) if following else durable_seq

    def _following(self) -> Segment | None:
        if self._segment is None:
            return None
        try:
            return read_segment(segment_path(self._directory, self._segment.number + 1))
        except FileNotFoundError:
            return None
