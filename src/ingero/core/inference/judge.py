"""The judge of inference engines: reports of all replicas in, verdicts out, one per cluster.

It is pure: the same reports at the same times give the same verdicts.
"""

from collections import OrderedDict, defaultdict
from collections.abc import Iterable
from typing import Final

from ingero.contract.measurements.engines import EngineId, EngineReport
from ingero.contract.verdict import CauseClass, Verdict, VerdictState
from ingero.core.durations import readable_seconds
from ingero.core.inference.baseline import Baselines
from ingero.core.inference.episodes import EngineEpisodes, EpisodeKey, Finding, FindingKind
from ingero.core.inference.pressure import growing_queue, kv_pressure, uneven_ranks
from ingero.core.inference.replicas import Replica, ReplicaKey, SlowReplica, find_slow

MAX_REPLICAS: Final = 4096  # of one cluster; the one that reported least recently goes first
STALE_S: Final = 15.0  # then an engine has ended, or its agent has
NEXT_STEPS: Final = {
    FindingKind.STALLED: "take it out of the load balancer and restart it; keep the stack above, "
    "it names the place where it hangs",
    FindingKind.SLOW: "compare its GPU clocks, neighbours and CPU quota with those of the others; "
    "send it less traffic meanwhile",
    FindingKind.KV_PRESSURE: "add replicas, or lower the longest context or the batch limit; "
    "preempted requests are computed twice",
    FindingKind.QUEUE: "add replicas, or limit what clients may send",
    FindingKind.UNEVEN: "balance by queue length, not by turns: some ranks wait for nothing",
}


class EngineJudge:
    """The replicas of one cluster. `now_s` is Unix time that never steps back."""

    def __init__(self) -> None:
        self._replicas: OrderedDict[ReplicaKey, Replica] = OrderedDict()
        self._baselines = Baselines()
        self._episodes = EngineEpisodes()
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._replicas)

    def take(
        self,
        node: str,
        engine: EngineId,
        report: EngineReport,
        now_s: float,
        usd_per_hour: float | None = None,
    ) -> None:
        """Take the report of one replica; `usd_per_hour` is the price of the replica."""
        key = (node, engine.port, engine.rank)
        replica = self._replicas.get(key)
        if replica is None or replica.engine.pid != engine.pid:  # restarted: it starts anew
            replica = self._replicas[key] = Replica(node, engine, usd_per_hour)
            if len(self._replicas) > MAX_REPLICAS:
                self._replicas.popitem(last=False)
                self.dropped += 1
        replica.engine, replica.usd_per_hour = engine, usd_per_hour
        replica.take(report, now_s, self._baselines)
        self._replicas.move_to_end(key)

    def tick(self, now_s: float) -> list[Verdict]:
        """Return the verdicts that are new, changed or resolved."""
        for key in [k for k, each in self._replicas.items() if now_s - each.last.at_s > STALE_S]:
            del self._replicas[key]
        findings: dict[EpisodeKey, Finding] = {}
        since: dict[EpisodeKey, float] = {}
        for replica in self._replicas.values():
            stalled_s = replica.last.report.stalled_s
            if stalled_s is not None:
                stalled = (replica.key, FindingKind.STALLED)
                findings[stalled] = _stalled(replica)
                since[stalled] = replica.last.at_s - stalled_s
        self._find_load(findings, now_s)
        for group in self._groups():
            for slow in find_slow(group, self._baselines, now_s):
                if (slow.key, FindingKind.STALLED) not in findings:
                    finding = _slow(self._replicas[slow.key], slow)
                    findings[slow.key, FindingKind.SLOW] = finding
        return self._episodes.update(findings, since, now_s)

    def current(self) -> list[Verdict]:
        """Return the verdicts of open episodes."""
        return self._episodes.current()

    def replicas(self) -> Iterable[Replica]:
        """Return the replicas that report."""
        return self._replicas.values()

    def _find_load(self, findings: dict[EpisodeKey, Finding], now_s: float) -> None:
        """Add what is wrong with the load; a stalled engine is stalled, whatever its queue does."""
        engines: defaultdict[tuple[str, int], list[Replica]] = defaultdict(list)
        for replica in self._replicas.values():
            if (replica.key, FindingKind.STALLED) in findings:
                continue
            engines[replica.node, replica.engine.port].append(replica)
            for kind, text in (
                (FindingKind.KV_PRESSURE, kv_pressure(replica, now_s)),
                (FindingKind.QUEUE, growing_queue(replica, now_s)),
            ):
                if text:
                    findings[replica.key, kind] = _overloaded(replica, kind, text)
        for ranks in engines.values():
            uneven = uneven_ranks(ranks, now_s)
            if uneven is not None:
                worst, text = uneven
                findings[worst.key, FindingKind.UNEVEN] = _overloaded(
                    worst, FindingKind.UNEVEN, text
                )

    def _groups(self) -> list[list[Replica]]:
        """Return the replicas of each model."""
        groups: defaultdict[tuple[str, str], list[Replica]] = defaultdict(list)
        for replica in self._replicas.values():
            groups[replica.engine.kind, replica.engine.model].append(replica)
        return [group for group in groups.values() if len(group) > 1]


_CLASSES: Final = {
    FindingKind.KV_PRESSURE: CauseClass.KV_CACHE,
    FindingKind.QUEUE: CauseClass.QUEUE,
    FindingKind.UNEVEN: CauseClass.DATA_IMBALANCE,
}


def _stalled(replica: Replica) -> Finding:
    report = replica.last.report
    running, waiting = report.running or 0.0, report.waiting or 0.0
    health = f" although /health says {report.health}" if report.health is not None else ""
    page = "" if report.is_up else "; its metrics page does not answer either"
    return _finding(
        replica,
        FindingKind.STALLED,
        state=VerdictState.STRAGGLER,
        cause_class=CauseClass.HANG,
        evidence=f"no step while {running:.0f} requests run and {waiting:.0f} wait{health}{page}",
        cause=report.waits,
        loss=1.0,
        usd_per_hour=replica.usd_per_hour,
    )


def _slow(replica: Replica, slow: SlowReplica) -> Finding:
    versus = (
        f"{readable_seconds(slow.others_s)} before, as the other replica still has"
        if slow.against_itself
        else f"{readable_seconds(slow.others_s)}, the median of {slow.peers} other replicas"
    )
    evidence = f"a step takes {readable_seconds(slow.step_s)} at equal batch instead of {versus}"
    price = replica.usd_per_hour
    return _finding(
        replica,
        FindingKind.SLOW,
        state=VerdictState.NOT_SURE if slow.doubt else VerdictState.STRAGGLER,
        cause_class=CauseClass.UNKNOWN,
        evidence=f"{evidence}; {slow.doubt}" if slow.doubt else evidence,
        loss=slow.loss,
        peers=slow.peers,
        usd_per_hour=None if price is None else price * slow.loss,
    )


def _overloaded(replica: Replica, kind: FindingKind, text: str) -> Finding:
    return _finding(
        replica,
        kind,
        state=VerdictState.OVERLOADED,
        cause_class=_CLASSES[kind],
        evidence=text,
    )


def _finding(
    replica: Replica,
    kind: FindingKind,
    *,
    state: VerdictState,
    cause_class: CauseClass,
    evidence: str,
    cause: str = "",
    loss: float | None = None,
    peers: int = 0,
    usd_per_hour: float | None = None,
) -> Finding:
    engine = replica.engine
    return Finding(
        kind=kind,
        node=replica.node,
        engine=f"{engine.kind} on port {engine.port}, pid {engine.pid}",
        model=engine.model,
        rank=engine.rank,
        state=state,
        cause_class=cause_class,
        evidence=evidence,
        cause=cause,
        next_step=NEXT_STEPS[kind],
        loss=loss,
        peers=peers,
        usd_per_hour=usd_per_hour,
    )
