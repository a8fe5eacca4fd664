"""Durations as text: short for programs, readable for people."""

import math


def human_duration(duration_ns: int) -> str:
    """Return two or three digits and a unit: `0`, `999ns`, `1.5us`, `456ms`, `1m30s`."""
    if duration_ns == 0:
        return "0"
    if duration_ns < 1_000:
        return f"{duration_ns}ns"
    for unit_ns, unit, limit_ns in ((1_000, "us", 1_000_000), (1_000_000, "ms", 1_000_000_000)):
        if duration_ns < limit_ns:
            return _short(duration_ns / unit_ns, unit)
    if duration_ns < 60_000_000_000:
        return _short(duration_ns / 1_000_000_000, "s")
    minutes, seconds = divmod(duration_ns // 1_000_000_000, 60)
    return f"{minutes}m{seconds}s"


def _short(value: float, unit: str) -> str:
    if value >= 10:
        return f"{value:.0f}{unit}"
    text = f"{value:.1f}{unit}"
    return text.replace(".0", "") if text.startswith("10.0") else text


def readable_duration(duration_ns: int) -> str:
    """Return three or four digits and a unit: `154.6 ms`, `1.05 s`, `2 min 30 s`."""
    if duration_ns < 1_000:
        return f"{duration_ns} ns"
    for unit_ns, unit, limit_ns in (
        (1_000, "µs", 999_950),
        (1_000_000, "ms", 999_950_000),
        (1_000_000_000, "s", 59_950_000_000),
    ):
        if duration_ns < limit_ns:
            return f"{_digits(duration_ns / unit_ns)} {unit}"
    minutes, seconds = divmod(round(duration_ns / 1_000_000_000), 60)
    return f"{minutes} min {seconds} s" if seconds else f"{minutes} min"


def readable_seconds(seconds: float) -> str:
    """Return seconds as `readable_duration` does, also negative ones and those nobody measured."""
    if not math.isfinite(seconds):
        return "an unknown time"
    duration_ns = round(seconds * 1e9)
    if not duration_ns:
        return "0 s"
    return f"{'-' if duration_ns < 0 else ''}{readable_duration(abs(duration_ns))}"


def _digits(value: float) -> str:
    text = f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"
    return text.rstrip("0").rstrip(".")
