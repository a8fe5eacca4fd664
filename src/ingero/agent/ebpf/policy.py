"""What to trace and what to record: the argument of `Tracer`."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ingero.agent.ebpf.functions import FUNCTIONS, Kind, Rate
from ingero.agent.ebpf.slots import NEVER_NS, Recording

CALL_LAYERS: Final = frozenset({"runtime", "driver", "graphs", "nccl"})
HOST_LAYERS: Final = frozenset({"scheduler", "processes", "pages", "oom", "block", "tcp"})
_MS: Final = 1_000_000
# A launch takes microseconds, so one of a quarter of a millisecond is worth a record.
SLOW_LAUNCH_NS: Final = 250_000


@dataclass(frozen=True, slots=True, kw_only=True)
class TracePolicy:
    """What to trace and what to record; the defaults are those of the agent.

    Every call is counted and timed; slow, failed, rare and sampled calls become records.
    """

    pids: tuple[int, ...] | None = None  # None: every process that maps CUDA or NCCL
    uid: int | None = None  # only processes of this user
    follow_children: bool = True
    layers: frozenset[str] = CALL_LAYERS | HOST_LAYERS
    record_everything: bool = False
    both_launch_layers: bool = False  # probe launches in libcudart as well as in libcuda
    stacks: bool = True
    slow_call_ns: int = 1 * _MS  # slower calls are recorded with their stack
    slow_launch_ns: int = 1 * _MS
    launch_sample_every: int = 100
    slow_runqueue_ns: int = 1 * _MS
    slow_io_wait_ns: int = 5 * _MS
    slow_sleep_ns: int = NEVER_NS
    slow_block_ns: int = 0
    rescan_s: float = 1.0
    max_processes: int = 1024
    keep_ended_s: float = 10.0  # how long the counts of a process that ended stay readable
    budget_share: float | None = 0.01  # of one core, per process; None: no governor
    map_sizes: tuple[tuple[str, int], ...] = ()  # bytes of rings, entries of other maps

    def recording(self, number: int) -> Recording:
        """Return which calls of one function become records."""
        function = FUNCTIONS[number]
        if function.kind in (Kind.SET_DEVICE, Kind.COMM_RANK, Kind.COMM_COUNT):
            return Recording()
        if self.record_everything or function.rate is not Rate.HOT:
            return Recording.everything(self.slow_call_ns)
        return Recording(slow_ns=self.slow_launch_ns, sample_every=self.launch_sample_every)

    def host_recordings(self) -> Sequence[Recording]:
        """Return which kernel events become records, in the order of layout.HOST_SLOTS."""
        if self.record_everything:
            return [Recording(slow_ns=0)] * 3 + [Recording(), Recording(slow_ns=0)]
        waits = (
            self.slow_runqueue_ns,
            self.slow_sleep_ns,
            self.slow_io_wait_ns,
            NEVER_NS,
            self.slow_block_ns,
        )
        return [Recording(slow_ns=slow) for slow in waits]
