"""Call stacks: a hash that identifies them across processes, and their compact JSON."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

T = TypeVar("T")

_OFFSET = 0xCBF29CE484222325
_PRIME = 0x100000001B3
_MASK = (1 << 64) - 1


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame: a native symbol, a Python function, or only an address."""

    ip: int = 0
    symbol: str = ""
    file: str = ""
    line: int = 0
    py_file: str = ""
    py_func: str = ""
    py_line: int = 0

    @property
    def is_resolved(self) -> bool:
        return bool(self.symbol or self.file or self.py_file or self.py_func)

    def __str__(self) -> str:
        """Return `forward (train.py:47)`, `cudaMalloc (libcudart.so.12)`, or the address."""
        is_python = bool(self.py_func or self.py_file)
        name = self.py_func if is_python else self.symbol
        file, line = (self.py_file, self.py_line) if is_python else (self.file, self.line)
        place = f"({file}{f':{line}' if line else ''})" if file else ""
        return " ".join(part for part in (name or hex(self.ip), place) if part)


def stack_hash(frames: Sequence[Frame]) -> int:
    """Return a signed 64-bit hash of the stack.

    It is made of names where any is known, so that address randomisation does not matter.
    """
    digest = _OFFSET
    if any(frame.is_resolved for frame in frames):
        parts: Iterable[bytes] = (
            b"\0".join(
                text.encode()
                for text in (frame.symbol, frame.file, frame.py_file, frame.py_func, "")
            )
            + frame.py_line.to_bytes(4, "little")
            for frame in frames
        )
    else:
        parts = (frame.ip.to_bytes(8, "little") for frame in frames)
    for part in parts:
        for byte in part:
            digest = ((digest ^ byte) * _PRIME) & _MASK
    return digest - (1 << 64) if digest >> 63 else digest


def encode_frames(frames: Sequence[Frame]) -> tuple[str, str]:
    """Return (ips, frames) as stored: resolved frames with short keys, else the addresses."""
    resolved = [_short(frame) for frame in frames if frame.is_resolved]
    if resolved:
        return "", json.dumps(resolved, separators=(",", ":"), ensure_ascii=False)
    return json.dumps([hex(frame.ip) for frame in frames], separators=(",", ":")), ""


def _short(frame: Frame) -> dict[str, object]:
    values: dict[str, object] = {
        "i": "" if frame.symbol or not frame.ip else hex(frame.ip),
        "s": frame.symbol,
        "f": frame.file.rsplit("/", 1)[-1],
        "l": frame.line,
        "pf": frame.py_file,
        "pfn": frame.py_func,
        "pl": frame.py_line,
    }
    return {key: value for key, value in values.items() if value}


_SHORT = {
    "ip": "i",
    "symbol": "s",
    "file": "f",
    "line": "l",
    "py_file": "pf",
    "py_func": "pfn",
    "py_line": "pl",
}


class _Stored(msgspec.Struct, rename=_SHORT):
    """A frame with the short keys used for storage."""

    ip: str = ""
    symbol: str = ""
    file: str = ""
    line: int = 0
    py_file: str = ""
    py_func: str = ""
    py_line: int = 0


def decode_frames(ips: str, frames: str) -> list[Frame]:
    """Decode stored frames of any recorder; return addresses where the frames cannot be read."""
    resolved = _decoded(frames, list[_Stored])
    if resolved:
        return [
            Frame(_address(ip), *names) for ip, *names in map(msgspec.structs.astuple, resolved)
        ]
    return [Frame(_address(ip)) for ip in _decoded(ips, list[str])]


def _decoded(text: str, kind: type[list[T]]) -> list[T]:
    try:
        return msgspec.json.decode(text, type=kind)
    except (msgspec.DecodeError, UnicodeError, RecursionError):
        return []


def _address(text: str) -> int:
    try:
        return int(text or "0", 16)
    except ValueError:
        return 0
