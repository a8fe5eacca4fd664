"""Why a GPU runs below its clocks: driver bits to four reasons, rising edges, and memory nobody can use."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

IDLE_BIT = 0x1


class ThrottleReason(StrEnum):
    """The four reasons that are exported."""

    POWER = "power"
    THERMAL = "thermal"
    SW = "sw"
    HW = "hw"


_BITS = {
    0x002: (ThrottleReason.SW,),  # application clocks
    0x004: (ThrottleReason.POWER, ThrottleReason.SW),  # power cap
    0x008: (ThrottleReason.HW,),  # hardware slowdown
    0x010: (ThrottleReason.SW,),  # sync boost
    0x020: (ThrottleReason.THERMAL, ThrottleReason.SW),
    0x040: (ThrottleReason.THERMAL, ThrottleReason.HW),
    0x080: (ThrottleReason.POWER, ThrottleReason.HW),  # power brake
    0x100: (ThrottleReason.SW,),  # display clock
}
_KNOWN = sum(_BITS) | IDLE_BIT
FORGET_AFTER = 3  # readings in a row that did not come


def decode_throttle(mask: int) -> frozenset[ThrottleReason]:
    """The reasons in a driver's mask. Idle is none; a bit nobody knows is the hardware's."""
    reasons = {reason for bit, found in _BITS.items() if mask & bit for reason in found}
    if mask & ~_KNOWN:
        reasons.add(ThrottleReason.HW)
    return frozenset(reasons)


@dataclass(slots=True)
class ThrottleEdges:
    """Counts how often each reason began, per GPU; the first look at a GPU is a state, not an edge."""

    counts: Counter[tuple[str, ThrottleReason]] = field(default_factory=Counter)
    active: dict[str, frozenset[ThrottleReason]] = field(default_factory=dict)
    _missed: Counter[str] = field(default_factory=Counter)

    def look_at_all(self, reasons: Mapping[str, frozenset[ThrottleReason]]) -> None:
        """One reading of all GPUs. One that gave none for a while is not shown in its last state any more."""
        for gpu, found in reasons.items():
            self.look(gpu, found)
        self._missed = Counter(
            {gpu: self._missed[gpu] + 1 for gpu in self.active.keys() - reasons.keys()}
        )
        for gpu, times in self._missed.items():
            if times >= FORGET_AFTER:
                del self.active[gpu]

    def look(self, gpu: str, reasons: frozenset[ThrottleReason]) -> None:
        """One reading of one GPU."""
        before = self.active.get(gpu)
        if before is not None:
            for reason in reasons - before:
                self.counts[gpu, reason] += 1
        self.active[gpu] = reasons
