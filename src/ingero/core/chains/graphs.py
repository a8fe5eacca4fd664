"""Causal chains about CUDA graphs: failed captures, unused graphs, falling launch rates."""

from collections import OrderedDict
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ingero.contract.chain import Chain, Severity, TimelineEntry
from ingero.contract.events import Layer, Source
from ingero.core.chains import recommendations
from ingero.core.chains.evidence import contended
from ingero.core.chains.neighbours import Host
from ingero.core.recording.event_columns import EventColumns, concatenate

BEGIN_CAPTURE, END_CAPTURE, INSTANTIATE, LAUNCH, DESTROY = 1, 2, 3, 4, 7
WINDOW_NS = 10_000_000_000
NEAR_LAUNCH_NS = 10_000_000
OPEN_CAPTURE_NS = 5_000_000_000
FAST_FAILURE_NS = 1_000_000
NEVER_LAUNCHED_NS = 30_000_000_000
RATE_BUCKET_NS = 500_000_000
MAX_EXECUTABLES = 4096
_U64 = (1 << 64) - 1


@dataclass(slots=True)
class GraphWatch:
    """Graph events of the last seconds, and executables that have not been launched yet."""

    _parts: list[EventColumns] = field(default_factory=list)
    _unlaunched: OrderedDict[tuple[int, int], int] = field(default_factory=OrderedDict)

    def add(self, events: EventColumns) -> None:
        """Keep graph calls and context switches."""
        is_graph, is_switch = events.source == Source.GRAPH, contended(events)
        if not is_graph.any() and not is_switch.any():
            return
        graph, switches = events.take(is_graph), events.take(is_switch)
        self._parts += [part for part in (graph, switches) if len(part)]
        calls = zip(graph.op, graph.pid, graph.arg1, graph.timestamp, strict=True)
        for op, pid, executable, timestamp in (
            (int(o), int(p), int(e), int(t)) for o, p, e, t in calls
        ):
            if op == INSTANTIATE:
                self._unlaunched[pid, executable] = timestamp
                if len(self._unlaunched) > MAX_EXECUTABLES:
                    self._unlaunched.popitem(last=False)
            elif op in (LAUNCH, DESTROY):
                self._unlaunched.pop((pid, executable), None)

    def find(self, now_ns: int, pid: int, mem_pct: float | None, host: Host) -> list[Chain]:
        """Return the chains about the graphs of one process, or of all processes with pid 0."""
        events = concatenate(self._parts)
        events = events.take(events.timestamp >= now_ns - 3 * WINDOW_NS)
        self._parts = [events] if len(events) else []
        found: list[Chain] = []
        graph_pids = np.unique(events.pid[events.source == Source.GRAPH])
        for process in (int(p) for p in graph_pids if pid in (0, int(p))):
            found += _process_chains(
                events.take(events.pid == process), process, now_ns, mem_pct, host
            )
        found += [
            _never_launched(process, executable)
            for (process, executable), since_ns in self._unlaunched.items()
            if pid in (0, process) and now_ns - since_ns >= NEVER_LAUNCHED_NS
        ]
        return found


def _process_chains(
    events: EventColumns, pid: int, now_ns: int, mem_pct: float | None, host: Host
) -> list[Chain]:
    graph = events.take(events.source == Source.GRAPH)
    begins, ends = graph.take(graph.op == BEGIN_CAPTURE), graph.take(graph.op == END_CAPTURE)
    failed = ends.take(ends.ret_code != 0)
    found = []
    if len(begins) and len(ends) and (len(failed) or (mem_pct is not None and mem_pct > 90)):
        found.append(_capture_oom(pid, len(failed), mem_pct))
    last_end = int(ends.timestamp.max()) if len(ends) else -1
    is_open = bool(
        (now_ns - begins.timestamp[begins.timestamp > last_end] >= OPEN_CAPTURE_NS).any()
    )
    if is_open or bool((failed.duration < FAST_FAILURE_NS).any()):
        found.append(_warm_up(pid, is_open))
    recent = events.take(events.timestamp >= now_ns - WINDOW_NS)
    launches = recent.take((recent.source == Source.GRAPH) & (recent.op == LAUNCH))
    near = _switches_near(launches, recent.take(recent.source == Source.HOST))
    if near >= 5:
        found.append(_contention(pid, near, host))
    for executable in np.unique(launches.arg1):
        rates = launch_rates(launches.timestamp[launches.arg1 == executable])
        if len(rates) >= 3 and rates.max() >= 5 and rates[-1] / rates.max() < 0.5:
            found.append(_rate_drop(pid, int(executable), float(rates.max()), float(rates[-1])))
    return found


def launch_rates(timestamps: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return launches per second in half-second buckets, oldest first.

    Buckets are counted back from the last launch; an incomplete oldest bucket is left out.
    """
    if len(timestamps) < 2 or timestamps.max() - timestamps.min() < RATE_BUCKET_NS:
        return np.empty(0)
    ages = timestamps.max() - timestamps
    counts = np.bincount(ages // RATE_BUCKET_NS)
    complete = counts[: int(ages.max() // RATE_BUCKET_NS)]
    return complete[::-1].astype(np.float64) * (1e9 / RATE_BUCKET_NS)


def _switches_near(launches: EventColumns, switches: EventColumns) -> int:
    if not len(launches) or not len(switches):
        return 0
    times = np.sort(launches.timestamp)
    right = np.minimum(np.searchsorted(times, switches.timestamp), len(times) - 1)
    left = np.maximum(right - 1, 0)
    distance = np.minimum(
        abs(times[right] - switches.timestamp), abs(times[left] - switches.timestamp)
    )
    return int((distance <= NEAR_LAUNCH_NS).sum())


def _capture_oom(pid: int, failures: int, mem_pct: float | None) -> Chain:
    detail = (
        f"{failures} failed captures" if failures else f"memory {mem_pct:.0f}% used during capture"
    )
    return Chain(
        name="graph-capture-oom",
        severity=Severity.HIGH,
        summary=f"CUDA graph capture failed or is about to: {detail}",
        root_cause="memory during graph capture",
        explanation="A capture needs all its memory at once; "
        "it failed, or memory was nearly used up while it ran.",
        recommendations=(recommendations.GRAPH_OOM,),
        timeline=(TimelineEntry(Layer.CUDA, "graphEndCapture", detail),),
        pid=pid,
    )


def _warm_up(pid: int, is_open: bool) -> Chain:
    detail = (
        "a capture was begun and never ended"
        if is_open
        else "a capture failed within a millisecond"
    )
    return Chain(
        name="graph-capture-warmup",
        severity=Severity.MEDIUM,
        summary=f"CUDA graph capture without warm-up: {detail}",
        root_cause="work that cannot be captured ran during the capture",
        explanation=f"In process {pid} {detail}. "
        "First calls create handles and allocate memory, which a capture does not allow.",
        recommendations=(recommendations.GRAPH_WARM_UP,),
        timeline=(
            TimelineEntry(
                Layer.CUDA, "graphBeginCapture" if is_open else "graphEndCapture", detail
            ),
        ),
        pid=pid,
    )


def _contention(pid: int, switches: int, host: Host) -> Chain:
    return Chain(
        name="graph-launch-cpu-contention",
        severity=Severity.MEDIUM,
        summary=f"CUDA graph launches are preempted: {switches} context switches "
        "within 10 ms of a launch",
        root_cause=f"{switches} sched_switch events",
        explanation="One graph launch starts a whole step: "
        "losing the CPU around it delays the step.",
        recommendations=(recommendations.pin(pid, host), recommendations.lower_priority((), host)),
        timeline=(
            TimelineEntry(Layer.HOST, "sched_switch", f"{switches} context switches near launches"),
            TimelineEntry(Layer.CUDA, "graphLaunch", "launched while preempted"),
        ),
        pid=pid,
    )


def _rate_drop(pid: int, executable: int, peak: float, current: float) -> Chain:
    handle = f"0x{executable & _U64:x}"
    text = f"from {peak:.0f} to {current:.0f} launches/s"
    return Chain(
        name=f"graph-freq-anomaly-{handle}",
        severity=Severity.MEDIUM,
        summary=f"CUDA graph {handle} is launched less often: {text}",
        root_cause="graph launches thinned out",
        explanation=f"Graph {handle} went {text}: batches of another size, "
        "or a host that does not keep up.",
        recommendations=(recommendations.GRAPH_FREQUENCY,),
        timeline=(TimelineEntry(Layer.CUDA, "graphLaunch", text),),
        pid=pid,
    )


def _never_launched(pid: int, executable: int) -> Chain:
    handle = f"0x{executable & _U64:x}"
    return Chain(
        name=f"graph-never-launched-{handle}",
        severity=Severity.LOW,
        summary=f"CUDA graph {handle} was instantiated and never launched",
        root_cause="unused graph",
        explanation=f"Process {pid} instantiated graph {handle} over 30 s ago and never "
        "launched it: it holds memory.",
        recommendations=(recommendations.GRAPH_UNUSED,),
        timeline=(TimelineEntry(Layer.CUDA, "graphInstantiate", "no launch for 30 s"),),
        pid=pid,
    )
