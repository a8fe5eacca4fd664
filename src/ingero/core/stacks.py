"""Call stacks: their identity across processes, and their compact JSON."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

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


def stack_hash(frames: Sequence[Frame]) -> int:
    """Signed 64-bit identity. By names where any is known, so that address randomisation does not matter."""
    digest = _OFFSET
    if any(frame.is_resolved for frame in frames):
        parts: Iterable[bytes] = (
            b"\0".join(text.encode() for text in (frame.symbol, frame.file, frame.py_file, frame.py_func, ""))
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
    """(ips, frames) as stored: resolved frames with short keys, addresses only when nothing was resolved."""
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


def decode_frames(ips: str, frames: str) -> list[Frame]:
    """Inverse of `encode_frames`, for files of any recorder; unknown keys are ignored."""
    if frames:
        return [
            Frame(
                int(item.get("i") or "0", 16), item.get("s", ""), item.get("f", ""), item.get("l", 0),
                item.get("pf", ""), item.get("pfn", ""), item.get("pl", 0),
            )
            for item in json.loads(frames)
        ]  # fmt: skip
    return [Frame(int(ip, 16)) for ip in json.loads(ips or "[]")]
