"""Durations as text: short in tables, exact in causal chains."""


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


def exact_duration(duration_ns: int) -> str:
    """Return every digit in the largest fitting unit: `25.799899ms`, `16.7µs`, `1m30.5s`."""
    if duration_ns < 1_000:
        return f"{duration_ns}ns"
    if duration_ns < 1_000_000:
        return f"{_digits(duration_ns, 1_000)}µs"
    if duration_ns < 1_000_000_000:
        return f"{_digits(duration_ns, 1_000_000)}ms"
    minutes, rest_ns = divmod(duration_ns, 60_000_000_000)
    seconds = f"{_digits(rest_ns, 1_000_000_000)}s"
    return f"{minutes}m{seconds}" if minutes else seconds


def _digits(value: int, unit: int) -> str:
    whole, rest = divmod(value, unit)
    fraction = str(rest).zfill(len(str(unit)) - 1).rstrip("0")
    return f"{whole}.{fraction}" if fraction else str(whole)


def rounded_to(duration_ns: int, unit_ns: int) -> int:
    """Round to the nearest multiple of a unit, for texts that need no more digits."""
    return (duration_ns + unit_ns // 2) // unit_ns * unit_ns
