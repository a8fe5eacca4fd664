"""The finder of causal chains: it keeps the window of events and applies every rule to it."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from ingero.contract.chain import Chain, severity_order
from ingero.contract.events import (
    OOM_KILL,
    POD_EVICTION,
    POD_OOM_KILL,
    POD_RESTART,
    TCP_RETRANSMIT,
    OpKey,
    Source,
)
from ingero.core.chains import rules
from ingero.core.chains.evidence import (
    EvidenceWindow,
    Intervals,
    Process,
    SystemSample,
    contended,
    gather,
)
from ingero.core.chains.graphs import GraphWatch
from ingero.core.chains.incidents import Finding, Incidents
from ingero.core.chains.neighbours import Host
from ingero.core.chains.throughput import ThroughputWatch, drop_chain, is_watched
from ingero.core.recording.event_columns import EventColumns
from ingero.core.recording.latency import OpSummary

MIN_CGROUP_SAMPLES = 10
OFF_CPU_CAP_NS = 1_000_000_000
NEIGHBOUR_RATIO = 2.0
NEIGHBOUR_MIN_NS = 1_000_000  # shorter waits do no harm
MAX_SAMPLES = 4096


@dataclass(frozen=True, slots=True)
class CgroupWaitTimes:
    """99th percentile and number of waits for a CPU by cgroup, and the cgroups that use the GPU.

    Recorders that count every wait provide this; without it, recorded switches are used.
    """

    by_cgroup: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    own: frozenset[int] = frozenset()


NO_WAITS = CgroupWaitTimes()


@dataclass(frozen=True, slots=True)
class _Snapshot:
    now_ns: int
    events: EventColumns
    intervals: Intervals
    samples: Mapping[int, SystemSample]
    pid: int
    cgroup_id: int


@dataclass(slots=True)
class ChainFinder:
    """The finder of one trace. It uses event time: `find` takes the time as an argument."""

    window_ns: int = rules.TRAINING_WINDOW_NS
    host: Host = field(default_factory=Host)
    _window: EvidenceWindow = field(init=False)
    _graphs: GraphWatch = field(default_factory=GraphWatch)
    _throughput: ThroughputWatch = field(default_factory=ThroughputWatch)
    _samples: dict[int, SystemSample] = field(default_factory=dict)
    _incidents: Incidents = field(init=False)

    def __post_init__(self) -> None:
        self._window = EvidenceWindow(self.window_ns)
        self._incidents = Incidents(self.window_ns)

    def add(self, events: EventColumns) -> None:
        """Add a batch of events of any kind."""
        self._window.add(events)
        self._graphs.add(events)

    def add_sample(self, sample: SystemSample) -> None:
        """Add a system sample; one per second is enough."""
        self._samples[sample.timestamp_ns] = sample
        if len(self._samples) > MAX_SAMPLES:
            del self._samples[next(iter(self._samples))]

    def find(
        self,
        now_ns: int,
        ops: Sequence[OpSummary],
        pid: int = 0,
        cgroup_id: int = 0,
        waits: CgroupWaitTimes = NO_WAITS,
    ) -> list[Chain]:
        """Return one chain per incident at this moment, worst first; `pid` selects one process."""
        events = self._window.at(now_ns)
        samples = self._samples_at(now_ns)
        chosen = [op for op in ops if pid in (0, op.pid) or op.pid == 0]
        snapshot = _Snapshot(now_ns, events, events.intervals(), samples, pid, cgroup_id)
        found = self._about_operations(snapshot, chosen)
        others = self._standalone(events, pid, cgroup_id, waits)
        memory = max((sample.mem_pct for sample in samples.values()), default=None)
        others += self._graphs.find(now_ns, pid, memory, self.host)
        found += [Finding(chain) for chain in worst_per_name(others)]
        joined = self._incidents.join(now_ns, found)
        return sorted(worst_per_name(joined), key=weight, reverse=True)

    def _samples_at(self, now_ns: int) -> dict[int, SystemSample]:
        if not self.window_ns:
            return self._samples
        recent = itertools.takewhile(
            lambda at: at >= now_ns - self.window_ns, reversed(self._samples)
        )  # samples come in the order of time
        return {at: self._samples[at] for at in reversed(list(recent)) if at <= now_ns}

    def _about_operations(self, snapshot: _Snapshot, ops: Sequence[OpSummary]) -> list[Finding]:
        tails: dict[OpKey, Finding] = {}
        drops: list[tuple[OpKey, Chain]] = []
        threads = _threads(ops)
        for op in ops:
            process = Process(
                op.pid or snapshot.pid, threads.get(op.pid, frozenset()), snapshot.cgroup_id
            )
            drop = self._throughput.observe(snapshot.now_ns, op) if is_watched(op) else None
            if rules.has_tail(op):
                evidence = gather(
                    snapshot.events, process, op.slow, snapshot.samples, snapshot.intervals
                )
                chain = rules.tail_chain(op, evidence, self.host)
                if chain and (op.key not in tails or weight(chain) > weight(tails[op.key].chain)):
                    tails[op.key] = Finding(chain, op.slow, process.waited_ns(snapshot.events))
            if drop:
                fallen = drop_chain(
                    op, drop, gather(snapshot.events, process, None, snapshot.samples), self.host
                )
                if fallen:
                    drops.append((op.key, fallen))
        return [*tails.values(), *(Finding(chain) for key, chain in drops if key not in tails)]

    def _standalone(
        self, events: EventColumns, pid: int, cgroup_id: int, counted: CgroupWaitTimes
    ) -> list[Chain]:
        found = []
        kills = events.take(events.is_op(*OOM_KILL) | events.is_op(*POD_OOM_KILL))
        if len(kills):
            victims = sorted({int(victim) for victim in kills.arg1 if victim})
            found.append(rules.oom_chain(len(kills), victims, self.host))
        retransmits = rules.retransmit_chain(int(events.is_op(*TCP_RETRANSMIT).sum()))
        if retransmits:
            found.append(retransmits)
        found += rules.pod_chains(
            int(events.is_op(*POD_RESTART).sum()), int(events.is_op(*POD_EVICTION).sum())
        )
        neighbour = self._neighbour(events, pid, cgroup_id, counted)
        return [*found, neighbour] if neighbour else found

    def _neighbour(
        self, events: EventColumns, pid: int, cgroup_id: int, counted: CgroupWaitTimes
    ) -> Chain | None:
        switches = events.take(contended(events) & (events.cgroup_id > 1))
        if counted.own:
            enough = {
                group: wait
                for group, (wait, count) in counted.by_cgroup.items()
                if count >= MIN_CGROUP_SAMPLES
            }
            waits, least_ns, targets = enough, NEIGHBOUR_MIN_NS, counted.own & enough.keys()
        else:
            waits, least_ns = _recorded_waits(switches), 0
            targets = frozenset({cgroup_id or _cgroup_of(switches, pid)}) & waits.keys()
        if not targets:
            return None
        target = max(targets, key=lambda group: waits[group])
        peers = sorted(wait for group, wait in waits.items() if group != target)
        ratio = waits[target] / max(peers[len(peers) // 2], 1) if peers else 0.0
        if ratio < NEIGHBOUR_RATIO or waits[target] < least_ns:
            return None
        own_rows = switches.take(switches.cgroup_id == target)
        others = (
            {int(other) for other in np.unique(own_rows.arg1)}
            - {0, pid}
            - {int(p) for p in np.unique(own_rows.pid)}
        )
        return rules.neighbour_chain(
            ratio, waits[target], len(peers), sorted(others)[:3], self.host
        )


def _recorded_waits(switches: EventColumns) -> dict[int, int]:
    return {
        int(group): _p99(switches.duration[switches.cgroup_id == group])
        for group in np.unique(switches.cgroup_id)
        if (switches.cgroup_id == group).sum() >= MIN_CGROUP_SAMPLES
    }


def _cgroup_of(switches: EventColumns, pid: int) -> int:
    own = switches.cgroup_id[switches.pid == pid]
    return int(own[-1]) if pid and len(own) else 0


def worst_per_name(found: Sequence[Chain]) -> list[Chain]:
    """Keep one chain per name: the worst of several processes."""
    kept: dict[str, Chain] = {}
    for chain in found:
        if chain.name not in kept or weight(chain) > weight(kept[chain.name]):
            kept[chain.name] = chain
    return list(kept.values())


def weight(chain: Chain) -> tuple[int, int, float]:
    """Return the sort key of a chain: severity, amount of evidence, tail ratio."""
    return -severity_order(chain.severity), len(chain.timeline), chain.tail_ratio


def _p99(durations: np.ndarray[tuple[int], np.dtype[np.int64]]) -> int:
    ordered = np.sort(np.minimum(durations, OFF_CPU_CAP_NS))
    index = min(max(int(0.99 * len(ordered) + 0.5) - 1, 0), len(ordered) - 1)
    return int(ordered[index])


def _threads(ops: Sequence[OpSummary]) -> dict[int, frozenset[int]]:
    threads: dict[int, frozenset[int]] = {}
    for op in ops:
        if op.key[0] in (Source.CUDA, Source.DRIVER, Source.GRAPH):
            threads[op.pid] = threads.get(op.pid, frozenset()) | op.tids
    return threads
