"""Six incidents without a GPU: scripted events that pass through the real recorder and rules.

`run_incident("incident", speed=10)` plays one and returns what was found. The finding is computed
from the statistics: when they do not show the incident, `Finding.holds` is False.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ingero.agent.processes.info import ProcessCache, ProcessInfo
from ingero.agent.recording.recorder import Recorder, RecorderPolicy, TracedEvents
from ingero.contract.chain import Chain
from ingero.contract.events import OFF_CPU_PREEMPTED, Source, find_op, op_name
from ingero.core.chains.evidence import SystemSample
from ingero.core.chains.finder import weight
from ingero.core.durations import readable_duration
from ingero.core.recording.event_columns import EventColumns, columns_from_rows
from ingero.core.recording.latency import OpSummary
from ingero.errors import ConfigError
from ingero.storage.trace.database import TraceDb
from ingero.storage.trace.writer import TraceWriter

PID, OTHER_PID, RIVAL_PID = 12345, 12346, 812
US, MS, SECOND_NS = 1_000, 1_000_000, 1_000_000_000
NAMES = {PID: "python3", OTHER_PID: "python3", RIVAL_PID: "stress-ng"}


@dataclass(frozen=True, slots=True)
class Finding:
    """What an incident shows, and whether the statistics confirm it."""

    text: str
    holds: bool


@dataclass(frozen=True, slots=True)
class Tick:
    """A running incident after `elapsed_s` simulated seconds: its statistics and chains."""

    elapsed_s: float
    operations: list[OpSummary]
    chains: list[Chain]


@dataclass(frozen=True, slots=True)
class IncidentResult:
    """The statistics, chains and finding of a whole incident."""

    name: str
    title: str
    events: int
    elapsed_s: float
    operations: list[OpSummary]
    chains: list[Chain]
    finding: Finding


class EventScript:
    """Collects events one after another; `now_ns` advances with every call."""

    def __init__(self, begins_ns: int, rng: np.random.Generator) -> None:
        self.now_ns = begins_ns
        self.rng = rng
        self.rows: list[tuple[int, ...]] = []
        self.busy: list[tuple[int, int]] = []  # periods in which the host lacks CPU time

    def call(
        self, op: str, typical_ns: float, jitter: float = 0.1, pid: int = PID, **more: int
    ) -> None:
        """Add a call that takes about `typical_ns`; the next one begins after it."""
        duration_ns = int(typical_ns * self.rng.uniform(1 - jitter, 1 + jitter))
        self.add(op, self.now_ns, duration_ns, pid, **more)
        self.now_ns += duration_ns + 2 * US

    def preempted(self, before_ns: int, off_ns: int) -> None:
        """Add a preemption of `off_ns` that ends `before_ns` from now; `now_ns` stays."""
        self.add(
            "sched_switch",
            self.now_ns + before_ns,
            off_ns,
            PID,
            arg1=RIVAL_PID,
            ret=OFF_CPU_PREEMPTED,
        )

    def add(
        self,
        op: str,
        at_ns: int,
        duration_ns: int,
        pid: int,
        arg0: int = 0,
        arg1: int = 0,
        ret: int = 0,
    ) -> None:
        """Add one event."""
        key = find_op(op)
        assert key is not None
        self.rows.append((at_ns, pid, pid, *key, duration_ns, arg0, arg1, ret, 0))

    def idle(self, span_ns: int) -> None:
        """Advance the time without an event."""
        self.now_ns += span_ns


def _incident(script: EventScript) -> None:
    for step in range(200):
        is_storm = 100 <= step < 150
        if step % 20 == 0:
            script.call("cudaMalloc", 120 * US, arg0=2**20)
        script.call("cudaLaunchKernel", (45 if is_storm else 14) * US)
        script.call("cudaMemcpyAsync", (3 if is_storm else 0.8) * MS, arg0=2**22, arg1=1)
        if is_storm:
            for switch in range(17):
                script.preempted((5 + 8 * switch) * MS, int(2.1 * MS))
            if step % 5 == 0:
                script.add("mm_page_alloc", script.now_ns, 0, PID, arg0=4 * 2**20)
            script.busy.append((script.now_ns, script.now_ns + 142 * MS))
        script.call("cudaStreamSync", (142 if is_storm else 16) * MS)


def _cold_start(script: EventScript) -> None:
    for first_ms in (340, 210, 150, 120, 100):
        script.call("cudaMalloc", first_ms * MS, arg0=2**28)
    for first_ms in (150, 80, 50):
        script.call("cudaLaunchKernel", first_ms * MS)
    _steady(
        script,
        200,
        {
            "cudaLaunchKernel": 45,
            "cudaMemcpyAsync": 25,
            "cudaMalloc": 15,
            "cudaDeviceSync": 10,
            "cudaStreamSync": 5,
        },
    )


_TYPICAL_US = {
    "cudaLaunchKernel": 15,
    "cudaMemcpyAsync": 800,
    "cudaMalloc": 50,
    "cudaDeviceSync": 150,
    "cudaStreamSync": 150,
}


def _steady(script: EventScript, count: int, weights: dict[str, int]) -> None:
    shares = np.array(list(weights.values())) / sum(weights.values())
    for op in script.rng.choice(list(weights), count, p=shares):
        script.call(str(op), _TYPICAL_US[str(op)] * US, arg0=2**20)


def _memcpy_bottleneck(script: EventScript) -> None:
    for op in script.rng.choice(
        ["copy", "launch", "sync", "malloc"], 200, p=[0.35, 0.35, 0.2, 0.1]
    ):
        name, typical_us = {
            "copy": ("cudaMemcpyAsync", 5000), "launch": ("cudaLaunchKernel", 15),
            "sync": ("cudaStreamSync", 150), "malloc": ("cudaMalloc", 50),
        }[str(op)]  # fmt: skip
        script.call(name, typical_us * US, arg0=2**26, arg1=1)
        script.idle(2 * MS)


def _periodic_spike(script: EventScript) -> None:
    for number in range(1, 2001):
        is_spike = number % 200 == 0
        script.call("cudaMalloc", (2500 if is_spike else 50) * US, arg0=2**20)
        script.call("cudaLaunchKernel", 15 * US)
        script.idle(2 * MS)


def _cpu_contention(script: EventScript) -> None:
    for step in range(200):
        is_contended = 50 <= step < 150
        if is_contended:
            script.preempted(300 * US, 5 * MS)
            script.busy.append((script.now_ns, script.now_ns + 10 * MS))
        script.call("cudaLaunchKernel", (80 if is_contended else 50) * US)
        slow_us = 2000 if step % 10 == 0 else 600
        script.call("cudaStreamSync", (slow_us if is_contended else 200) * US)
        script.idle(20 * MS)


def _gpu_steal(script: EventScript) -> None:
    for cycle in range(40):
        for pid in (PID, OTHER_PID):
            for launch in range(8):
                script.call(
                    "cudaLaunchKernel", (800 if cycle and launch == 0 else 14) * US, pid=pid
                )
                script.call("cudaMemcpyAsync", 0.5 * MS, pid=pid, arg0=2**20, arg1=1)
            script.call("cudaStreamSync", 12 * MS, pid=pid)
            script.call("cudaDeviceSync", 8 * MS, pid=pid)


def _of(operations: list[OpSummary], op: str) -> OpSummary:
    return next(one for one in operations if one.key == find_op(op) and one.pid == PID)


def _find_slow_waits(operations: list[OpSummary], chains: list[Chain]) -> Finding:
    op = "cudaStreamSync"
    found = _of(operations, op)
    chain = next(
        (one for one in chains if one.cuda_op == op and "sched_switch" in one.root_cause), None
    )
    text = f"{op} is up to {found.tail_ratio:.1f}x slower than its median"
    cause = f"; cause: {chain.root_cause}" if chain else ", and no cause was found"
    return Finding(text + cause, chain is not None and found.tail_ratio >= 3)


def _find_cold_start(operations: list[OpSummary], chains: list[Chain]) -> Finding:
    malloc = _of(operations, "cudaMalloc")
    ratio = malloc.max_ns / max(malloc.p50_ns, 1)
    return Finding(
        f"the first cudaMalloc took {ratio:.0f}x the median of {readable_duration(malloc.p50_ns)}",
        ratio > 10,
    )


def _find_memcpy(operations: list[OpSummary], chains: list[Chain]) -> Finding:
    total_ns = sum(one.total_ns for one in operations)
    share = operations[0].total_ns / total_ns
    name = op_name(*operations[0].key)
    return Finding(
        f"{name} takes {share:.0%} of the time in CUDA calls",
        name == "cudaMemcpyAsync" and share > 0.3,
    )


def _find_period(operations: list[OpSummary], chains: list[Chain]) -> Finding:
    malloc = _of(operations, "cudaMalloc")
    ratio = malloc.max_ns / max(malloc.p50_ns, 1)
    every = f"every ~{malloc.period} calls" if malloc.period else "without a period"
    return Finding(
        f"cudaMalloc spikes {ratio:.0f}x above its median {every}",
        malloc.period is not None and ratio > 10,
    )


def _find_steal(operations: list[OpSummary], chains: list[Chain]) -> Finding:
    users = sorted({one.pid for one in operations})
    launch = _of(operations, "cudaLaunchKernel")
    text = (
        f"{len(users)} processes ({', '.join(map(str, users))}) take turns on one GPU: "
        f"the first launch of a turn takes {readable_duration(launch.p99_ns)} instead of "
        f"{readable_duration(launch.p50_ns)}, and the host is not busy"
    )
    return Finding(text, len(users) == 2 and launch.tail_ratio > 10 and not chains)


@dataclass(frozen=True, slots=True)
class Incident:
    """One incident: its title, its script, and how its finding is read from the statistics."""

    title: str
    play: Callable[[EventScript], None]
    find: Callable[[list[OpSummary], list[Chain]], Finding]


INCIDENTS: dict[str, Incident] = {
    "incident": Incident(
        "a CPU storm makes every wait for the GPU longer",
        _incident,
        _find_slow_waits,
    ),
    "cold-start": Incident(
        "first calls cost far more than later ones", _cold_start, _find_cold_start
    ),
    "memcpy-bottleneck": Incident(
        "copies take more time than kernels", _memcpy_bottleneck, _find_memcpy
    ),
    "periodic-spike": Incident(
        "an allocator that is slow at regular intervals", _periodic_spike, _find_period
    ),
    "cpu-contention": Incident("another process takes the CPU", _cpu_contention, _find_slow_waits),
    "gpu-steal": Incident("two processes share one GPU", _gpu_steal, _find_steal),
}
ALIASES = {"gpu-contention": "gpu-steal", "contention": "gpu-steal"}


def run_incident(
    name: str,
    speed: float = 0.0,
    on_tick: Callable[[Tick], None] | None = None,
    db: Path | None = None,
    seed: int = 1,
    sleep: Callable[[float], None] = time.sleep,
) -> IncidentResult:
    """Play an incident; with `db` it is also recorded.

    A `speed` of 1 is real time, 10 is ten times faster, and 0 does not wait at all.
    """
    name = ALIASES.get(name, name)
    incident = INCIDENTS.get(name)
    if incident is None:
        raise ConfigError(f"unknown scenario {name!r}; choose one of {', '.join(INCIDENTS)}")
    script = EventScript(time.time_ns(), np.random.default_rng(seed))
    incident.play(script)
    events = columns_from_rows(script.rows)
    events = events.take(np.argsort(events.timestamp, kind="stable"))
    store = TraceDb(db, "demo") if db else None
    writer = TraceWriter(store) if store else None
    begins_ns = int(events.timestamp[0])
    policy = RecorderPolicy(node="demo", since_ns=begins_ns, cpus=8)
    processes = ProcessCache(lambda pid: ProcessInfo(pid, 0, NAMES.get(pid, "")))
    recorder = Recorder(policy, writer, store, processes=processes)
    best: dict[str, Chain] = {}
    try:
        for now_ns, part in _seconds(events):
            recorder.take(_traced(part))
            for chain in recorder.tick(now_ns, (), _sample(now_ns, script.busy)):
                if chain.name not in best or weight(chain) > weight(best[chain.name]):
                    best[chain.name] = chain
            if on_tick:
                on_tick(Tick((now_ns - begins_ns) / 1e9, recorder.summaries(), recorder.chains))
            if speed:
                sleep(1 / speed)
        recorder.flush(now_ns, is_last=True)
    finally:
        if writer:
            writer.close()
    chains = sorted(best.values(), key=weight, reverse=True)
    operations = [one for one in recorder.summaries() if one.key[0] != Source.HOST]
    elapsed_s = (int(events.timestamp[-1]) - begins_ns) / 1e9
    finding = incident.find(operations, chains)
    return IncidentResult(name, incident.title, len(events), elapsed_s, operations, chains, finding)


def _seconds(events: EventColumns) -> Iterator[tuple[int, EventColumns]]:
    begins_ns = int(events.timestamp[0])
    number = (events.timestamp - begins_ns) // SECOND_NS
    for second in range(int(number[-1]) + 1):
        yield begins_ns + (second + 1) * SECOND_NS, events.take(number == second)


def _traced(events: EventColumns) -> TracedEvents:
    none = np.full(len(events), -1, np.int64)
    names = np.array([NAMES.get(int(pid), "").encode() for pid in events.pid], "S16")
    return TracedEvents(events, none, names, none, {})


def _sample(now_ns: int, busy: list[tuple[int, int]]) -> SystemSample:
    is_busy = any(begin < now_ns and end > now_ns - SECOND_NS for begin, end in busy)
    return SystemSample(now_ns, 97.0 if is_busy else 28.0, 41.0, 9300, 0, 11.4 if is_busy else 1.9)
