"""The fingerprint that Alertmanager gives to a set of labels: FNV-1a of names and values."""

from collections.abc import Mapping
from typing import Final

_OFFSET: Final = 14695981039346656037
_PRIME: Final = 1099511628211
_SEPARATOR: Final = b"\xff"


def fingerprint_of(labels: Mapping[str, str]) -> str:
    """Return 16 hexadecimal digits."""
    value = _OFFSET
    for name in sorted(labels):
        for byte in name.encode() + _SEPARATOR + labels[name].encode() + _SEPARATOR:
            value = (value ^ byte) * _PRIME % (1 << 64)
    return f"{value:016x}"
