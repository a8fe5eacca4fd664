"""The rules of causal chains: a slow operation, the evidence that overlaps it, and what to do.

Each rule is a pure function of a window of events, with the published limits. Where the slow calls
are known, only evidence that overlaps them in time counts: a busy disk ten seconds earlier is not a
cause.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from ingero.contract.chain import Chain, Severity, TimelineEntry
from ingero.contract.events import GPU_SOURCES, Layer, Source, op_name
from ingero.core.chains import recommendations
from ingero.core.chains.evidence import BlockIo, Evidence, SystemSample
from ingero.core.chains.neighbours import Host
from ingero.core.durations import readable_duration
from ingero.core.recording.latency import OpSummary

TRAINING_WINDOW_NS = 10_000_000_000
INFERENCE_WINDOW_NS = 500_000_000
MIN_COUNT = 10
MIN_TAIL_RATIO = 3.0
MIN_TAIL_NS = 50_000  # not published: a tail of a few microseconds is noise
MIN_SWITCHES = 5
MANY_PAGES_BYTES = 2**30
MANY_IO = 200
LONG_IO_NS = 1_000_000_000
MS = 1_000_000


def window_for(workload: str) -> int:
    """Return how far back evidence counts for a type of workload."""
    return INFERENCE_WINDOW_NS if workload == "inference" else TRAINING_WINDOW_NS


@dataclass(slots=True)
class _Draft:
    """The causes found so far, in the order in which they are printed."""

    causes: list[str] = field(default_factory=list)
    timeline: list[TimelineEntry] = field(default_factory=list)
    advice: list[str] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    severity: Severity = Severity.MEDIUM

    def add(self, cause: str, entry: TimelineEntry, *advice: str, is_high: bool = False) -> None:
        self.causes.append(cause)
        self.timeline.append(entry)
        self.advice += [text for text in advice if text not in self.advice]
        if is_high:
            self.severity = Severity.HIGH


def has_tail(op: OpSummary) -> bool:
    """Return whether the slowest percent of a GPU call takes far longer than its median."""
    is_counted = op.count >= MIN_COUNT and op.p50_ns > 0 and op.key[0] in GPU_SOURCES
    return is_counted and op.tail_ratio >= MIN_TAIL_RATIO and op.p99_ns >= MIN_TAIL_NS


def tail_chain(op: OpSummary, evidence: Evidence, host: Host) -> Chain | None:
    """Return why this operation has a tail; None without a tail or without a cause."""
    if not has_tail(op):
        return None
    draft = _Draft()
    if evidence.system:
        _add_system(draft, evidence.system)
    _add_cpu(draft, evidence, op.pid, host)
    _add_disk(draft, evidence, op, host)
    _add_network(draft, evidence)
    if not draft.causes:
        return None
    if not draft.advice:
        draft.advice.append(
            recommendations.MEMORY
            if "memory pressure" in draft.causes
            else recommendations.BUSY_CPU
        )
    name, p99, p50 = op_name(*op.key), readable_duration(op.p99_ns), readable_duration(op.p50_ns)
    causes = " + ".join(draft.causes)
    layer = Layer.CUDA if op.key[0] == Source.CUDA else Layer.DRIVER
    symptom = TimelineEntry(
        layer,
        name,
        f"p99={p99} ({op.tail_ratio:.1f}x p50={p50}) in these seconds",
        op.p99_ns // 1000,
    )
    return Chain(
        name=f"tail-{draft.severity.lower()}-{name}",
        severity=draft.severity,
        summary=f"{name} p99={p99} ({op.tail_ratio:.1f}x p50) — {causes}",
        root_cause=causes,
        explanation=_explain_tail(name, op, draft, evidence),
        recommendations=tuple(draft.advice),
        cuda_op=name,
        p99_ns=op.p99_ns,
        p50_ns=op.p50_ns,
        tail_ratio=round(op.tail_ratio, 1),
        timeline=(*draft.timeline, symptom),
        pid=op.pid,
        confidence=evidence.covered,
    )


def _add_system(draft: _Draft, system: SystemSample) -> None:
    def entry(op: str, detail: str) -> TimelineEntry:
        return TimelineEntry(Layer.SYSTEM, op, detail)

    if system.cpu_pct > 90:
        draft.add(
            "high CPU utilization", entry("cpu", f"CPU {system.cpu_pct:.0f}% busy"), is_high=True
        )
    if system.mem_pct > 95:
        detail = f"memory {system.mem_pct:.0f}% used, {system.mem_avail_mb} MB left"
        draft.add("memory pressure", entry("memory", detail), is_high=True)
    if system.swap_mb > 0:
        draft.add(
            "swap activity",
            entry("swap", f"{system.swap_mb} MB in swap"),
            recommendations.SWAP,
            is_high=True,
        )
        draft.remarks.append("Memory in swap adds milliseconds to every access.")
    if system.load_avg > 10:
        draft.add("high system load", entry("load", f"load average {system.load_avg:.1f}"))


def _add_cpu(draft: _Draft, evidence: Evidence, pid: int, host: Host) -> None:
    if evidence.switches >= MIN_SWITCHES:
        off_cpu = readable_duration(evidence.off_cpu_ns)
        detail = f"{evidence.switches} context switches ({off_cpu} off-CPU)"
        if evidence.preemptors:
            detail += ", CPU taken by " + ", ".join(
                host.describe(other) for other in evidence.preemptors
            )
        entry = TimelineEntry(Layer.HOST, "sched_switch", detail, evidence.off_cpu_ns // 1000)
        cause = f"{evidence.switches} sched_switch events"
        draft.add(
            cause,
            entry,
            recommendations.pin(pid, host),
            recommendations.lower_priority(evidence.preemptors, host, pid),
        )
    if evidence.page_bytes > MANY_PAGES_BYTES:
        entry = TimelineEntry(
            Layer.HOST, "mm_page_alloc", f"{evidence.page_bytes / 2**30:.1f} GiB of pages allocated"
        )
        draft.add("large host memory allocations", entry, recommendations.PAGES)


def _is_heavy(io: BlockIo, p99_ns: int) -> bool:
    return io.count > 0 and (
        io.count >= MANY_IO or io.total_ns >= LONG_IO_NS or io.peak_ns >= p99_ns / 100
    )


def _add_disk(draft: _Draft, evidence: Evidence, op: OpSummary, host: Host) -> None:
    own = _is_heavy(evidence.io, op.p99_ns)
    io = evidence.io if own else evidence.other_io
    if not own and not (io.count >= MANY_IO or io.total_ns >= LONG_IO_NS):
        return
    advice = [recommendations.SLOW_DISK] if io.peak_ns > 20 * MS else []
    advice.append(
        recommendations.WRITES
        if io.writes > io.reads
        else recommendations.READS
        if io.reads > io.writes
        else recommendations.MIXED_IO
    )
    if not own:
        advice.append(recommendations.lower_disk_priority(io.busiest_pid, host, op.pid))
    entry = TimelineEntry(Layer.IO, "block_io", _io_detail(io), io.total_ns // 1000)
    cause = "heavy block I/O" if own else f"heavy block I/O by {host.describe(io.busiest_pid)}"
    draft.add(cause, entry, *advice, is_high=io.peak_ns > 50 * MS or io.total_ns > 2 * LONG_IO_NS)
    draft.remarks.append(_io_remark(io))


def _io_detail(io: BlockIo) -> str:
    total, peak = (
        readable_duration(io.total_ns),
        readable_duration(io.peak_ns),
    )
    return (
        f"{io.count} I/O ops ({io.reads} reads, {io.writes} writes), {total} total, "
        f"{io.megabytes:.1f} MB, peak {peak}"
    )


def _io_remark(io: BlockIo) -> str:
    peak = readable_duration(io.peak_ns)
    kind = (
        "a spinning or network disk"
        if io.peak_ns > 20 * MS
        else "a SATA disk"
        if io.peak_ns > 2 * MS
        else "NVMe"
    )
    text = (
        f"The disk was busy during the slow calls; its slowest request ({peak}) looks like {kind}."
    )
    if io.reads > 2 * io.writes:
        text += " Mostly reads: data loading or a model being read."
    elif io.writes > 2 * io.reads:
        text += " Mostly writes: a checkpoint or logs."
    return text


def _add_network(draft: _Draft, evidence: Evidence) -> None:
    if evidence.retransmits > 5:
        cause = f"{evidence.retransmits} TCP retransmits"
        entry = TimelineEntry(
            Layer.NET, "tcp_retransmit", f"{evidence.retransmits} segments sent again"
        )
        draft.add(cause, entry, recommendations.RETRANSMITS, is_high=evidence.retransmits > 50)
        if evidence.retransmits > 50:
            draft.remarks.append("This many retransmissions also delay NCCL over sockets.")
    if evidence.socket_calls > 100 and evidence.socket_bytes > 2**20:
        detail = f"{evidence.socket_calls} socket ops ({evidence.socket_bytes / 2**20:.1f} MB)"
        draft.add(
            "heavy network socket I/O",
            TimelineEntry(Layer.NET, "socket_io", detail),
            recommendations.SOCKETS,
        )


def _explain_tail(name: str, op: OpSummary, draft: _Draft, evidence: Evidence) -> str:
    p99, p50 = readable_duration(op.p99_ns), readable_duration(op.p50_ns)
    parts = [
        f"In these seconds {name} usually took {p50}; its slowest percent took {p99}, "
        f"{op.tail_ratio:.1f} times as long."
    ]
    parts += draft.remarks
    parts.append(f"Meanwhile: {', '.join(draft.causes)}.")
    if evidence.covered is not None:
        parts.append(f"{evidence.covered:.0%} of the slow calls overlap these events in time.")
    return " ".join(parts)


def oom_chain(kills: int, victims: Sequence[int], host: Host) -> Chain:
    """Return the chain for processes that the kernel killed for lack of memory."""
    who = ", ".join(host.describe(pid) for pid in victims) or "a process"
    return Chain(
        name="oom",
        severity=Severity.HIGH,
        summary=f"out of memory: the kernel killed {who}",
        root_cause="host memory exhausted",
        explanation=f"The host ran out of memory and the kernel killed {who}. "
        "Work on the GPU stopped or stalled.",
        recommendations=(recommendations.OUT_OF_MEMORY,),
        timeline=(
            TimelineEntry(Layer.HOST, "oom_kill", f"{kills} kill{'s' if kills > 1 else ''}: {who}"),
        ),
    )


def retransmit_chain(count: int) -> Chain | None:
    """Return the chain for a burst of retransmissions; None for a few."""
    if count <= 10:
        return None
    severity = Severity.HIGH if count > 100 else Severity.MEDIUM
    return Chain(
        name=f"tcp-retransmit-{severity.lower()}",
        severity=severity,
        summary=f"{count} TCP retransmits",
        root_cause=f"{count} TCP retransmits",
        explanation=f"{count} TCP segments were sent again: packets are lost or late between "
        "this host and its peers.",
        recommendations=(recommendations.CONGESTION,),
        timeline=(TimelineEntry(Layer.NET, "tcp_retransmit", f"{count} segments sent again"),),
    )


def pod_chains(restarts: int, evictions: int) -> list[Chain]:
    """Return the chains for pods of this node that Kubernetes restarted or evicted."""
    found = []
    for count, name, text, advice in (
        (restarts, "pod-restart", "Kubernetes restarted a container", recommendations.POD_RESTART),
        (evictions, "pod-eviction", "Kubernetes evicted a pod", recommendations.POD_EVICTION),
    ):
        if count:
            entry = TimelineEntry(Layer.INFRA, name.replace("-", "_"), f"{count} times")
            found.append(
                Chain(
                    name=name,
                    severity=Severity.HIGH,
                    summary=f"{text} ({count})",
                    root_cause=text,
                    explanation=f"{text}: ranks that ran in it are gone, the others wait for them.",
                    recommendations=(advice,),
                    timeline=(entry,),
                )
            )
    return found


def neighbour_chain(
    ratio: float, p99_ns: int, peers: int, preemptors: Sequence[int], host: Host
) -> Chain:
    """Return the chain for a container that waits far longer for the CPU than its neighbours."""
    severity = Severity.HIGH if ratio > 5 else Severity.MEDIUM
    p99 = readable_duration(p99_ns)
    plural = "s" if peers > 1 else ""
    detail = f"off-CPU p99 {p99}, {ratio:.1f}x the median of {peers} other container{plural}"
    return Chain(
        name=f"noisy-neighbor-{severity.lower()}",
        severity=severity,
        summary=f"the job's container waits {ratio:.1f}x longer for the CPU than its neighbours",
        root_cause="noisy neighbour",
        explanation=f"Threads of the job were off the CPU for up to {p99}; "
        "threads of other containers on this host for a much shorter time.",
        recommendations=(
            recommendations.limit_neighbour(host, preemptors),
            recommendations.pin(0, host),
        ),
        timeline=(TimelineEntry(Layer.HOST, "noisy_neighbor", detail, p99_ns // 1000),),
    )
