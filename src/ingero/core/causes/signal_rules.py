"""What each signal means: from which difference on it is named, and how much time it costs.

A difference counts where it exceeds both the spread of the peers and a floor, the smallest
difference that such a counter can show over a few seconds. Signals that have a normal value
(no quota, no error) are compared with it where no peers are known.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from ingero.contract.causes import CauseKind, Signal


class Place(StrEnum):
    """Where a cause arises; verdicts of a class expect it there."""

    GPU = "gpu"
    HOST = "host"
    NETWORK = "network"


# What depends on the model of a GPU: ranks with another model are no peers for these.
GPU_SIGNALS: Final = frozenset(
    {
        Signal.SM_CLOCK,
        Signal.THROTTLE,
        Signal.POWER,
        Signal.TEMPERATURE,
        Signal.ECC_ERRORS,
        Signal.ECC_CORRECTED,
        Signal.PCIE_WIDTH,
        Signal.PCIE_GENERATION,
    }
)


class Cost(StrEnum):
    """How a difference becomes a share of the time."""

    SHARE = "share"  # the signal is a share of the time
    CLOCK = "clock"  # GPU work takes longer in proportion
    UNKNOWN = "unknown"


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalRule:
    """How one signal is compared and told."""

    kind: CauseKind
    place: Place
    text: str  # with {mine} and {peers}
    unit: str = ""
    digits: int = 0
    is_share: bool = False
    higher_is_worse: bool = True
    floor: float
    normal: float | None = None  # the value of a healthy rank, where it is known without peers
    cost: Cost = Cost.UNKNOWN
    least: float = 0.2  # of the lateness that it must explain
    times: float = 1.0  # the peers' median that it must exceed

    def value(self, number: float) -> str:
        """Return a value as it is told, `38 %` or `1410 MHz`."""
        if self.is_share:
            percent = 100 * number
            return f"{percent:.1f} %" if percent < 10 else f"{percent:.0f} %"
        return f"{number:.{self.digits}f}{self.unit}"


# Floors: shares are counted in ticks of at least 1 ms over seconds, so 2 % is ten times their
# resolution; clocks move by steps of 15 MHz, of which three are named; counters start at one event.
RULES: Final = {
    Signal.SM_CLOCK: SignalRule(
        kind=CauseKind.GPU_CLOCK, place=Place.GPU, text="SM clock {mine}, peers {peers}",
        unit=" MHz", higher_is_worse=False, floor=45.0, cost=Cost.CLOCK,
    ),
    Signal.ECC_ERRORS: SignalRule(
        kind=CauseKind.GPU_MEMORY, place=Place.GPU, floor=0.5, normal=0.0,
        text="{mine} new uncorrected ECC errors, peers {peers}",
    ),
    Signal.ECC_CORRECTED: SignalRule(
        kind=CauseKind.GPU_MEMORY, place=Place.GPU, floor=100.0,
        text="{mine} new corrected ECC errors, peers {peers}",
    ),
    Signal.PCIE_WIDTH: SignalRule(
        kind=CauseKind.PCIE, place=Place.GPU, text="PCIe link x{mine}, peers x{peers}",
        higher_is_worse=False, floor=0.5,
    ),
    Signal.PCIE_GENERATION: SignalRule(
        kind=CauseKind.PCIE, place=Place.GPU, higher_is_worse=False, floor=0.5,
        text="PCIe link of generation {mine}, peers {peers}",
    ),
    Signal.RUNQUEUE_SHARE: SignalRule(
        # Where ranks share cores, every late rank waits for a CPU somewhat more than the others.
        kind=CauseKind.CPU, place=Place.HOST, is_share=True, floor=0.02, cost=Cost.SHARE,
        least=0.6, times=2.0, text="waits for a CPU {mine} of the time, peers {peers}",
    ),
    Signal.QUOTA_SHARE: SignalRule(
        kind=CauseKind.QUOTA, place=Place.HOST, is_share=True, floor=0.02, normal=0.0,
        cost=Cost.SHARE, text="stopped {mine} of the time by the CPU quota of its cgroup, "
        "peers {peers}",
    ),
    Signal.DISK_SHARE: SignalRule(
        kind=CauseKind.DISK, place=Place.HOST, is_share=True, floor=0.02, cost=Cost.SHARE,
        text="waits for a disk {mine} of the time, peers {peers}",
    ),
    Signal.MAJOR_FAULTS: SignalRule(
        kind=CauseKind.MEMORY, place=Place.HOST, unit=" a second", floor=20.0,
        text="page faults from disk {mine}, peers {peers}",
    ),
    Signal.MEMORY_PRESSURE: SignalRule(
        kind=CauseKind.MEMORY, place=Place.HOST, is_share=True, floor=0.05, normal=0.0,
        text="memory pressure {mine} of the time, peers {peers}",
    ),
    Signal.IO_PRESSURE: SignalRule(
        kind=CauseKind.DISK, place=Place.HOST, is_share=True, floor=0.10,
        text="I/O pressure {mine} of the time, peers {peers}",
    ),
    Signal.RETRANSMIT_SHARE: SignalRule(
        kind=CauseKind.NETWORK, place=Place.NETWORK, is_share=True, floor=0.005,
        text="TCP retransmits {mine}, peers {peers}",
    ),
    Signal.NIC_ERRORS: SignalRule(
        kind=CauseKind.NETWORK, place=Place.NETWORK, unit=" a second", digits=1, floor=1.0,
        text="errors and drops of network devices {mine}, peers {peers}",
    ),
    Signal.NIC_SPEED: SignalRule(
        kind=CauseKind.NETWORK, place=Place.NETWORK, unit=" Gb/s", higher_is_worse=False, floor=0.5,
        text="network ports that are up have {mine} in all, peers {peers}",
    ),
}  # fmt: skip

# Bits of the driver's mask, worst first; idle (0x1) is no reason, clocks of a user's choice are.
THROTTLE_REASONS: Final = (
    (0x80, "power brake"),
    (0x40, "hardware thermal slowdown"),
    (0x20, "software thermal slowdown"),
    (0x08, "hardware slowdown"),
    (0x04, "power cap"),
    (0x02, "application clocks"),
    (0x10, "sync boost"),
    (0x100, "display clocks"),
)

# Errors of the driver that a program causes, by NVIDIA's catalogue: the GPU is as fast as before.
# They come when a process is killed or reads wrong memory, for instance in the job before this one.
PROGRAM_XIDS: Final = frozenset({13, 31, 43, 45, 68, 109})


def throttle_text(mask: int) -> str:
    """Return the worst reason of a mask in words; empty without one."""
    return next((text for bit, text in THROTTLE_REASONS if mask & bit), "")
