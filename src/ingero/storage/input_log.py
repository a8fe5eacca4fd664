"""Recorded inputs of Fleet: every measurement, tick and verdict in order, in files of bounded size.

A frame is its length (4 bytes) and a MessagePack array: kind, Unix seconds, cluster, body. A file
that a crash cut off ends with its last complete frame. A `state` frame begins a part of its own:
what came before it in the same cluster is forgotten.
"""

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import msgspec

from ingero.errors import ForeignFile, StoreError
from ingero.files import create_private, open_own, read_regular

MAGIC = b"INGEROIN\x01"
PUSH, TICK, VERDICT, RATES, STATE, POLICY = "push", "tick", "verdict", "rates", "state", "policy"
_LENGTH = struct.Struct(">I")
MAX_FRAME = 64 << 20
MAX_FILE = 1 << 30


class Entry(NamedTuple):
    """One recorded event; `body` is an OTLP request, a verdict, a setting, a state, or empty."""

    kind: str
    at_s: float
    cluster: str
    body: bytes


def encode_frame(kind: str, at_s: float, cluster: str = "", body: bytes = b"") -> bytes:
    """Return one frame with its length."""
    frame = msgspec.msgpack.encode([kind, at_s, cluster, body])
    return _LENGTH.pack(len(frame)) + frame


class InputLog:
    """Appends to numbered files, each of which begins with the frames of `preamble`.

    `removed` counts the oldest files deleted beyond the limit.
    """

    def __init__(
        self, folder: Path, preamble: bytes = b"", max_bytes: int = 256 << 20, files: int = 8
    ) -> None:
        self.removed = 0
        self._folder, self._preamble = folder, preamble
        self._per_file, self._files = max_bytes // files, files
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise StoreError(f"cannot record inputs in {folder}: {error.strerror}") from None
        existing = list_files(folder)
        self._number = int(existing[-1].stem.split("-")[1]) if existing else 0
        self._written = 0
        self._open_next()

    def write(self, kind: str, at_s: float, cluster: str = "", body: bytes = b"") -> None:
        """Append one frame.

        Raises OSError when the disk is full; the caller then stops the recording, not Fleet.
        """
        frame = encode_frame(kind, at_s, cluster, body)
        if self._written + len(frame) - _LENGTH.size > self._per_file:
            self._file.close()
            self._open_next()
        self._file.write(frame)
        self._written += len(frame)
        if kind == TICK:
            self._file.flush()

    def close(self) -> None:
        """Write out what is buffered and close the file."""
        self._file.close()

    def _open_next(self) -> None:
        self._number += 1
        path = self._folder / f"inputs-{self._number:08d}.rec"
        self._file = open_own(path)
        self._file.write(MAGIC + self._preamble)
        self._written = len(MAGIC)
        for old in list_files(self._folder)[: -self._files]:
            old.unlink(missing_ok=True)
            self.removed += 1


def write_recording(folder: Path, data: bytes) -> None:
    """Write a recording that was received whole into an empty folder."""
    create_private(folder / "inputs-00000001.rec", data)


def list_files(folder: Path) -> list[Path]:
    """Return the recorded files, oldest first."""
    return sorted(folder.glob("inputs-*.rec"))


def read_inputs(folder: Path) -> Iterator[Entry]:
    """Yield every complete frame of every file, in order."""
    paths = list_files(folder)
    if not paths:
        raise ForeignFile(
            f"{folder} contains no recorded inputs; Fleet writes them with --record-inputs DIR"
        )
    for path in paths:
        data = read_regular(path, MAX_FILE)
        if not data.startswith(MAGIC):
            raise ForeignFile(f"{path} is not a recording of this version")
        yield from read_frames(data, len(MAGIC), str(path))


def read_frames(data: bytes, place: int = 0, path: str = "a recording") -> Iterator[Entry]:
    """Yield every complete frame of `data` from a place on; raise ForeignFile for a damaged one."""
    while place + _LENGTH.size <= len(data):
        (length,) = _LENGTH.unpack_from(data, place)
        place += _LENGTH.size
        if length > MAX_FRAME or place + length > len(data):
            return
        try:
            frame = msgspec.msgpack.decode(
                data[place : place + length], type=tuple[str, float, str, bytes]
            )
        except msgspec.DecodeError as error:
            raise ForeignFile(
                f"{path} is damaged at byte {place}: {error}; move it away to replay the rest"
            ) from None
        yield Entry(*frame)
        place += length
