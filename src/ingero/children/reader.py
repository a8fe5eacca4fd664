"""A child process that reads files of strangers for this one, and answers in frames.

A frame is its kind (1 byte), its length (8 bytes) and its content. The child is the untrusted side:
frames are bounded here, and the caller checks what they contain.
"""

import contextlib
import os
import select
import struct
import subprocess
import time
from collections.abc import Iterator, Mapping
from typing import BinaryIO, Final

from ingero.errors import MalformedInput

_HEAD: Final = struct.Struct(">BQ")
_READ_BYTES: Final = 1 << 20
MAX_FRAME_BYTES: Final = 1 << 30
END_TIMEOUT_S: Final = 5.0
START_TIMEOUT_S: Final = 60.0  # for the program to load


class ChildEnded(Exception):
    """The child ended without an answer: `signal` ended it, or this process after a timeout."""

    def __init__(self, signal: int, timed_out: bool) -> None:
        super().__init__(f"signal {signal}")
        self.signal, self.timed_out = signal, timed_out


class ReadingChild:
    """Starts the child and yields its frames; use it in a `with` block, which ends the child."""

    def __init__(self, command: list[str], environment: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
        )
        self._deadline_s = time.monotonic() + START_TIMEOUT_S
        self._data = bytearray()

    def __enter__(self) -> "ReadingChild":
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        # A read that a file system never finishes cannot be ended; such a child is left behind.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(END_TIMEOUT_S)
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):  # what was buffered is not needed any more
                pipe.close()

    def send(self, *parts: bytes) -> None:
        """Send the whole request; the child reads it before it answers."""
        assert self._process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # the child has ended, and `frames` says how
            for part in parts:
                self._process.stdin.write(part)
            self._process.stdin.close()

    def allow(self, wall_s: float) -> None:
        """Give the child this much time from now on."""
        self._deadline_s = time.monotonic() + wall_s

    def frames(self) -> Iterator[tuple[int, bytes]]:
        """Yield kind and content of each frame; raise ChildEnded when the child ends early."""
        while True:
            kind, length = _HEAD.unpack(self._take(_HEAD.size))
            if length > MAX_FRAME_BYTES:
                raise MalformedInput(f"the reader sent a frame of {length} bytes")
            yield kind, self._take(length)

    def _take(self, count: int) -> bytes:
        assert self._process.stdout is not None
        pipe, ready = self._process.stdout.fileno(), select.poll()
        ready.register(pipe, select.POLLIN)
        while len(self._data) < count:
            left_s = self._deadline_s - time.monotonic()
            if left_s <= 0 or not ready.poll(left_s * 1000):
                raise ChildEnded(0, timed_out=True)
            data = os.read(pipe, _READ_BYTES)
            if not data:
                raise self._ended()
            self._data += data
        taken = bytes(self._data[:count])
        del self._data[:count]
        return taken

    def _ended(self) -> ChildEnded:
        """Return how the child ended; one that only closed its output counts as too late."""
        try:
            status = self._process.wait(END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return ChildEnded(0, timed_out=True)
        return ChildEnded(max(-status, 0), timed_out=False)


def write_frame(output: BinaryIO, kind: int, content: bytes) -> None:
    """Called in a child: send one frame."""
    output.write(_HEAD.pack(kind, len(content)))
    output.write(content)
    output.flush()
