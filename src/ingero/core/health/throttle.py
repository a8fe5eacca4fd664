"""Why a GPU is throttled: the driver's bit mask as reasons, and how often each began."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

IDLE_BIT = 0x1


class ThrottleReason(StrEnum):
    """The reasons that are exported."""

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
FORGET_AFTER = 3  # missing readings in a row


def decode_throttle(mask: int) -> frozenset[ThrottleReason]:
    """Return the reasons in a driver's mask.

    Idle is not a reason; an unknown bit counts as hardware.
    """
    reasons = {reason for bit, found in _BITS.items() if mask & bit for reason in found}
    if mask & ~_KNOWN:
        reasons.add(ThrottleReason.HW)
    return frozenset(reasons)


@dataclass(slots=True)
class ThrottleEdges:
    """How often each reason began, per GPU. The first reading of a GPU only sets its state."""

    counts: Counter[tuple[str, ThrottleReason]] = field(default_factory=Counter)
    active: dict[str, frozenset[ThrottleReason]] = field(default_factory=dict)
    _missed: Counter[str] = field(default_factory=Counter)

    def update_all(self, reasons: Mapping[str, frozenset[ThrottleReason]]) -> None:
        """Take one reading of all GPUs.

        Drop a GPU that has been missing for `FORGET_AFTER` readings.
        """
        for gpu, found in reasons.items():
            self.update(gpu, found)
        self._missed = Counter(
            {gpu: self._missed[gpu] + 1 for gpu in self.active.keys() - reasons.keys()}
        )
        for gpu, times in self._missed.items():
            if times >= FORGET_AFTER:
                del self.active[gpu]

    def update(self, gpu: str, reasons: frozenset[ThrottleReason]) -> None:
        """Take one reading of one GPU."""
        before = self.active.get(gpu)
        if before is not None:
            for reason in reasons - before:
                self.counts[gpu, reason] += 1
        self.active[gpu] = reasons
