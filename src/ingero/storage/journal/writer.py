"""Appending to the journal: requests are durable before they are acknowledged.

Segments whose requests are all in the database are used again. So disk space is claimed once, and a
sync never has to change file metadata.
"""

import contextlib
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ingero.errors import StoreError, StoreFull
from ingero.files import open_own, sync_directory
from ingero.storage.journal.frames import (
    SEGMENT_HEAD,
    Frame,
    Segment,
    encode_frame,
    encode_head,
    list_segments,
    segment_path,
)

SEGMENT_BYTES: Final = 64 * 1024 * 1024
_ZEROS: Final = bytes(1024 * 1024)


class JournalWriter:
    """Appends groups of requests. One thread appends; another may call `prepare` and `recycle`."""

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
        """Write `(signal, body)` requests, sync, and return the last sequence.

        After an error none of the requests counts as written.
        """
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
        """Claim the disk space of the next segment before it is needed; raise StoreFull."""
        with self._spare_lock:
            if not self._spare.exists():
                _claim(self._spare, self._segment_bytes)

    def recycle(self, applied_seq: int) -> int:
        """Free the segments whose requests are all in the database; return how many."""
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
        """Return the disk space of all segments."""
        return len(self.segments) * self._segment_bytes

    def close(self) -> None:
        self._abandon()

    def _abandon(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _roll(self, needed: int) -> None:
        self._abandon()
        size = max(self._segment_bytes, SEGMENT_HEAD.size + needed)
        number = self.segments[-1].number + 1 if self.segments else 1
        path = segment_path(self._directory, number)
        with self._spare_lock:
            if size > self._segment_bytes or not self._spare.exists():
                _claim(self._spare, size)
            fd = -1
            try:
                fd = os.open(self._spare, os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC)
                os.pwrite(fd, encode_head(number, self.last_seq + 1), 0)
                os.fdatasync(fd)
                self._spare.rename(path)
                sync_directory(self._directory)
            except OSError as error:
                if fd >= 0:
                    os.close(fd)
                raise _cannot_write(self._directory, error) from None
        self._fd, self._size, self._offset = fd, size, SEGMENT_HEAD.size
        self.segments.append(Segment(path, number, self.last_seq + 1))


def _claim(path: Path, size: int) -> None:
    """Create a file filled with zeros.

    Its blocks exist, so later writes into it cannot run out of space.
    """
    temporary = path.with_suffix(".tmp")
    try:
        with open_own(temporary) as file:
            fd = file.fileno()
            for offset in range(0, size, len(_ZEROS)):
                wanted = min(len(_ZEROS), size - offset)
                if os.pwrite(fd, _ZEROS[:wanted], offset) != wanted:
                    raise OSError(28, "No space left on device")
            os.fsync(fd)
        temporary.rename(path)
    except OSError as error:
        with contextlib.suppress(OSError):  # on a read-only disk there is nothing to remove
            temporary.unlink(missing_ok=True)
        raise _cannot_write(path.parent, error) from None


def _cannot_write(directory: Path, error: OSError) -> StoreError:
    return StoreFull(
        f"cannot write the journal in {directory}: {error.strerror}; new data is refused until "
        "this is fixed, acknowledged data is kept"
    )
