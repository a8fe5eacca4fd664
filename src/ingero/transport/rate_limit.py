"""Rate limits by caller, in a table of bounded size."""

import ipaddress
from collections import OrderedDict


class RateLimit:
    """Token buckets by caller.

    When there are too many callers, the least recently seen is dropped; it starts full again.
    """

    def __init__(self, per_s: float, burst: int, max_callers: int = 4096) -> None:
        self._per_s = per_s
        self._burst = burst
        self._max_callers = max_callers
        self._buckets: OrderedDict[object, tuple[float, float]] = OrderedDict()

    def take(self, caller: object, now_s: float) -> float:
        """Return 0.0 if the caller may proceed, else the seconds until it may."""
        level, at_s = self._buckets.pop(caller, (float(self._burst), now_s))
        level = min(float(self._burst), level + (now_s - at_s) * self._per_s)
        allowed = level >= 1.0
        self._buckets[caller] = (level - 1.0 if allowed else level, now_s)
        if len(self._buckets) > self._max_callers:
            self._buckets.popitem(last=False)
        return 0.0 if allowed else (1.0 - level) / self._per_s


def address_group(address: str | None) -> str:
    """Return the key under which an address is limited: an IPv4 address, or the /64 of an IPv6 one.

    Whoever has one IPv6 address usually has all addresses of its /64.
    """
    if not address or ":" not in address:
        return address or ""
    try:
        packed = ipaddress.IPv6Address(address.partition("%")[0]).packed
    except ValueError:
        return address
    return packed[:8].hex()
