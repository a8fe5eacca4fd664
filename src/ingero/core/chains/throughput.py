"""Throughput of each operation: a drop in the number of calls while each call stays fast."""

from collections import OrderedDict
from dataclasses import dataclass, field

from ingero.contract.chain import Chain, Severity, TimelineEntry
from ingero.contract.events import GPU_SOURCES, Layer, Source, op_name
from ingero.core.chains import recommendations
from ingero.core.chains.evidence import Evidence
from ingero.core.chains.neighbours import Host
from ingero.core.chains.rules import MIN_SWITCHES
from ingero.core.durations import readable_duration
from ingero.core.recording.latency import MAX_KEYS, OpSummary, StatKey

MIN_SNAPSHOTS = 5
MIN_ELAPSED_NS = 500_000_000
MIN_DELTA = 10
MIN_PEAK_PER_S = 10.0
MIN_CURRENT_PER_S = 1.0
DROP_BELOW = 0.6
MANY_IO = 50
MANY_RETRANSMITS = 5


@dataclass(frozen=True, slots=True)
class Drop:
    """The best rate so far and the current rate."""

    peak_per_s: float
    current_per_s: float

    @property
    def percent(self) -> float:
        return 100 * (1 - self.current_per_s / self.peak_per_s)


@dataclass(slots=True)
class _Rate:
    count: int
    at_ns: int
    snapshots: int = 0
    peak_per_s: float = 0.0


@dataclass(slots=True)
class ThroughputWatch:
    """Call counts of the last snapshot, per process and operation."""

    _rates: OrderedDict[StatKey, _Rate] = field(default_factory=OrderedDict)

    def observe(self, now_ns: int, op: OpSummary) -> Drop | None:
        """Add a snapshot and return the drop if the rate is well below its best."""
        key = (op.pid, *op.key)
        rate = self._rates.get(key)
        if rate is None:
            self._rates[key] = _Rate(op.count, now_ns, 1)
            if len(self._rates) > MAX_KEYS:
                self._rates.popitem(last=False)
            return None
        self._rates.move_to_end(key)
        elapsed_ns = now_ns - rate.at_ns
        if elapsed_ns < 0:  # the clock was set back: start again from here
            rate.count, rate.at_ns = op.count, now_ns
        if elapsed_ns < MIN_ELAPSED_NS:
            return None
        delta = op.count - rate.count
        current = delta * 1e9 / elapsed_ns
        drop = Drop(rate.peak_per_s, current)
        is_drop = (
            rate.snapshots >= MIN_SNAPSHOTS
            and delta >= MIN_DELTA
            and rate.peak_per_s >= MIN_PEAK_PER_S
            and current >= MIN_CURRENT_PER_S
            and current / rate.peak_per_s < DROP_BELOW
        )
        rate.count, rate.at_ns, rate.snapshots = op.count, now_ns, rate.snapshots + 1
        rate.peak_per_s = max(rate.peak_per_s, current)
        return drop if is_drop else None


def drop_chain(op: OpSummary, drop: Drop, evidence: Evidence, host: Host) -> Chain | None:
    """Return why fewer calls are made; None without a cause."""
    causes, timeline, advice = _drop_causes(op, evidence, host)
    if not causes:
        return None
    busy = evidence.system is not None and evidence.system.cpu_pct > 90
    severity = Severity.HIGH if drop.percent > 60 or busy else Severity.MEDIUM
    name = op_name(*op.key)
    text = f"throughput dropped {drop.percent:.0f}%"
    rates = f"{drop.peak_per_s:.0f} → {drop.current_per_s:.0f} ops/s"
    layer = Layer.CUDA if op.key[0] == Source.CUDA else Layer.DRIVER
    joined = " + ".join(causes)
    return Chain(
        name=f"drop-{severity.lower()}-{name}",
        severity=severity,
        summary=f"{name} {text} — {joined}",
        root_cause=joined,
        explanation=f"{name} {text} ({rates}) while single calls stayed fast "
        f"(p50={readable_duration(op.p50_ns)}, p99={readable_duration(op.p99_ns)}): "
        f"the host does not issue work fast enough. Meanwhile: {', '.join(causes)}.",
        recommendations=tuple(advice),
        cuda_op=name,
        timeline=(*timeline, TimelineEntry(layer, name, f"{text} ({rates})")),
        pid=op.pid,
    )


def _drop_causes(
    op: OpSummary, evidence: Evidence, host: Host
) -> tuple[list[str], list[TimelineEntry], list[str]]:
    causes: list[str] = []
    timeline: list[TimelineEntry] = []
    advice: list[str] = []
    if evidence.switches >= MIN_SWITCHES:
        off_cpu = readable_duration(evidence.off_cpu_ns)
        causes.append(f"{evidence.switches} sched_switch events")
        detail = f"{evidence.switches} context switches ({off_cpu} off-CPU)"
        timeline.append(
            TimelineEntry(Layer.HOST, "sched_switch", detail, evidence.off_cpu_ns // 1000)
        )
        advice += [
            recommendations.pin(op.pid, host),
            recommendations.lower_priority(evidence.preemptors, host, op.pid),
        ]
    io = evidence.io if evidence.io.count >= MANY_IO else evidence.other_io
    if io.count >= MANY_IO:
        total = readable_duration(io.total_ns)
        whose = "" if io is evidence.io else f" by {host.describe(io.busiest_pid)}"
        causes.append(f"{io.count} block I/O operations{whose}")
        timeline.append(
            TimelineEntry(Layer.IO, "block_io", f"{io.count} I/O ops ({total} total){whose}")
        )
        advice.append(recommendations.WRITES if io.writes > io.reads else recommendations.READS)
    if evidence.retransmits > MANY_RETRANSMITS:
        causes.append(f"{evidence.retransmits} TCP retransmits")
        timeline.append(
            TimelineEntry(
                Layer.NET, "tcp_retransmit", f"{evidence.retransmits} segments sent again"
            )
        )
        advice.append(recommendations.RETRANSMITS)
    return causes, timeline, advice


def is_watched(op: OpSummary) -> bool:
    """Return whether the throughput of an operation is watched: only calls into the GPU."""
    return op.key[0] in GPU_SOURCES
