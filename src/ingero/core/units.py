"""Durations and sizes as people write them: `500ms`, `1h30m`, `10g`; read and written."""

import math
import re

_DURATION_UNITS_S = {"ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_SIZE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", re.IGNORECASE)


def parse_duration_s(text: str) -> float:
    """Return the seconds of `500ms`, `10s`, `1h30m` or of a plain number; raise ValueError."""
    try:
        seconds = float(text)
    except ValueError:
        parts = _DURATION.findall(text)
        if not parts or "".join(number + unit for number, unit in parts) != text:
            raise ValueError(f"{text!r} is not a duration such as 500ms, 10s or 1h30m") from None
        seconds = sum(float(number) * _DURATION_UNITS_S[unit] for number, unit in parts)
    if not math.isfinite(seconds) or seconds < 0:
        raise ValueError(f"{text!r} is not a duration such as 500ms, 10s or 1h30m")
    return seconds


def format_duration(seconds: float) -> str:
    """Return a duration in the largest unit that divides it: `90m`, `7d`, `500ms`, `1.5s`."""
    for unit in ("d", "h", "m"):
        if seconds and seconds % _DURATION_UNITS_S[unit] == 0:
            return f"{seconds / _DURATION_UNITS_S[unit]:.12g}{unit}"
    return f"{seconds * 1000:.12g}ms" if 0 < seconds < 1 else f"{seconds:.12g}s"


def parse_since_ns(text: str, now_ns: int) -> int:
    """Return the moment a duration before now, 0 if that is before the epoch; raise ValueError."""
    return max(0, now_ns - int(min(parse_duration_s(text), now_ns / 1e9 + 1) * 1e9))


def parse_size_bytes(text: str) -> int:
    """Return the bytes of `512m`, `10g`, `1.5GiB` or of a plain number; raise ValueError."""
    match = _SIZE.fullmatch(text.strip())
    if not match:
        raise ValueError(f"{text!r} is not a size such as 512m or 10g")
    return int(float(match[1]) * _SIZE_UNITS[match[2].lower()])


def format_size(size_bytes: int) -> str:
    """Return a size in the largest unit that divides it: `4g`, `256m`, `1000`."""
    for unit in ("t", "g", "m", "k"):
        if size_bytes and size_bytes % _SIZE_UNITS[unit] == 0:
            return f"{size_bytes // _SIZE_UNITS[unit]}{unit}"
    return str(size_bytes)
