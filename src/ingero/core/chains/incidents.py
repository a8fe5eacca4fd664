"""One incident, one finding: chains that share a cause, a process and a time become one.

A storm on the CPU makes every call of a job slow. That is one thing to repair, with several
symptoms.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import numpy as np

from ingero.contract.chain import Chain, Severity, severity_order
from ingero.core.recording.latency import SlowCalls

INCIDENT_GAP_NS: Final = 120_000_000_000  # a finding that comes back later is another incident
# Time that slow calls cost a process, in ms per second: 5 % and 0.5 % of its time.
HIGH_MS_PER_S: Final = 50.0
MEDIUM_MS_PER_S: Final = 5.0
MAX_INCIDENTS: Final = 1024
_WORD: Final = re.compile(r"\w+")
# evidence of the same trouble has different names
_CAUSES: Final = {
    "cpu": "cpu", "load": "cpu", "sched_switch": "cpu", "noisy_neighbor": "cpu",
    "memory": "memory", "swap": "memory", "mm_page_alloc": "memory",
    "block_io": "disk", "tcp_retransmit": "network", "socket_io": "network",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Finding:
    """A chain with its slow calls, where they are known, and the waits for a CPU beside them."""

    chain: Chain
    slow: SlowCalls | None = None
    off_cpu_ns: int = 0


@dataclass(slots=True)
class _Incident:
    pid: int
    causes: frozenset[str]
    name: str
    last_ns: int


@dataclass(slots=True)
class Incidents:
    """The incidents of one trace; each keeps the name under which it was first found."""

    window_ns: int
    _known: list[_Incident] = field(default_factory=list)

    def join(self, now_ns: int, findings: Sequence[Finding]) -> list[Chain]:
        """Return one chain per incident at this moment."""
        return [self._named(now_ns, group) for group in _groups(findings)]

    def _named(self, now_ns: int, group: list[Finding]) -> Chain:
        chain = _one(group, now_ns, self.window_ns)
        causes = frozenset().union(*(causes_of(one.chain) for one in group))
        if not causes:
            return chain
        self._known = [one for one in self._known if now_ns - one.last_ns <= INCIDENT_GAP_NS][
            -MAX_INCIDENTS:
        ]
        for incident in self._known:
            if _same_process(incident.pid, chain.pid) and incident.causes & causes:
                incident.last_ns, incident.causes = now_ns, incident.causes | causes
                return replace(chain, name=incident.name)
        self._known.append(_Incident(chain.pid, causes, chain.name, now_ns))
        return chain


def causes_of(chain: Chain) -> frozenset[str]:
    """Return the kinds of cause in a chain: cpu, memory, disk or network."""
    return frozenset(_CAUSES[entry.op] for entry in chain.timeline if entry.op in _CAUSES)


def lost_ms_per_s(calls: Iterable[SlowCalls], now_ns: int, window_ns: int) -> float:
    """Return the time in which at least one call was slow, per second of the window.

    Calls of several threads, or a call inside a call, count once.
    """
    spans = [(one.start_ns, one.end_ns) for one in calls]
    start = np.concatenate([begin for begin, _ in spans])
    end = np.concatenate([finish for _, finish in spans])
    if not len(start):
        return 0.0
    since_ns = now_ns - window_ns if window_ns else int(start.min())
    start, end = np.maximum(start, since_ns), np.minimum(end, now_ns)
    order = np.argsort(start, kind="stable")
    start, end = start[order], end[order]
    reached = np.maximum.accumulate(np.concatenate([[since_ns], end[:-1]]))
    lost_ns = int(np.maximum(end - np.maximum(start, reached), 0).sum())
    return lost_ns / 1e6 / max((now_ns - since_ns) / 1e9, 1.0)


def severity_of(lost: float) -> Severity:
    """Return how bad a loss is, in ms per second of the process."""
    if lost >= HIGH_MS_PER_S:
        return Severity.HIGH
    return Severity.MEDIUM if lost >= MEDIUM_MS_PER_S else Severity.LOW


def _same_process(one: int, other: int) -> bool:
    return one == other or 0 in (one, other)  # 0: the chain is about the host


def _groups(findings: Sequence[Finding]) -> list[list[Finding]]:
    groups: list[list[Finding]] = []
    for finding in findings:
        causes = causes_of(finding.chain)
        alike = [
            group
            for group in groups
            if causes
            and any(
                causes & causes_of(one.chain) and _same_process(one.chain.pid, finding.chain.pid)
                for one in group
            )
        ]
        joined = [*(one for group in alike for one in group), finding]
        groups = [group for group in groups if not any(group is one for one in alike)] + [joined]
    return groups


def _one(group: list[Finding], now_ns: int, window_ns: int) -> Chain:
    """Return the worst chain of a group, with the symptoms of the others."""
    ranked = sorted(group, key=_rank)
    chain = ranked[0].chain
    others = [one.chain for one in ranked[1:]]
    known = [one.slow for one in group if one.slow is not None]
    explanation, severity = chain.explanation, chain.severity
    if known:
        waited = max(one.off_cpu_ns for one in group) / 1e6 / max(window_ns / 1e9, 1.0)
        lost = min(max(lost_ms_per_s(known, now_ns, window_ns), waited), 1000.0)
        severity = severity_of(lost)
        cost = f"{lost:.0f}" if lost >= 1 else "less than 1"
        explanation += f" This cost the process {cost} ms of each second."
    if others:
        names = list(dict.fromkeys(one.cuda_op or one.root_cause for one in others))
        explanation += f" The same cause also shows in {', '.join(names)}."
    causes = causes_of(chain)
    more = [
        entry
        for other in others
        for entry in other.timeline[:-1]
        if entry.op in _CAUSES and _CAUSES[entry.op] not in causes
    ]
    symptoms = [other.timeline[-1] for other in others]
    return replace(
        chain,
        name=_name(chain, severity),
        severity=severity,
        summary=_summary(chain, others),
        explanation=explanation,
        recommendations=_advice((chain, *others)),
        timeline=(*chain.timeline[:-1], *dict.fromkeys(more), *symptoms, chain.timeline[-1]),
    )


def _advice(chains: Iterable[Chain]) -> tuple[str, ...]:
    """Return each advice once: two that name the same processes in another order are one."""
    found: dict[tuple[str, ...], str] = {}
    for line in (line for chain in chains for line in chain.recommendations):
        found.setdefault(tuple(sorted(_WORD.findall(line))), line)
    return tuple(found.values())


def _rank(finding: Finding) -> tuple[bool, int, int, float]:
    """Return the sort key: a slow call of the job before a state of the host, then the worst."""
    chain = finding.chain
    return (
        not chain.cuda_op,
        severity_order(chain.severity),
        -len(chain.timeline),
        -chain.tail_ratio,
    )


def _name(chain: Chain, severity: Severity) -> str:
    return chain.name.replace(f"-{chain.severity.lower()}-", f"-{severity.lower()}-", 1)


def _summary(chain: Chain, others: Sequence[Chain]) -> str:
    names = dict.fromkeys(one.cuda_op for one in others if one.cuda_op not in ("", chain.cuda_op))
    return f"{chain.summary}; also slow: {', '.join(names)}" if names else chain.summary
