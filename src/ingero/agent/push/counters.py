"""Counters of the agent: the metrics of `ingero fleet-push` are made of them."""

from collections import Counter
from dataclasses import dataclass, field


@dataclass(slots=True)
class LoopCounters:
    """What the push loop did since the agent started."""

    ticks: int = 0
    late_ticks: int = 0
    failed_reads: int = 0
    pushes: Counter[str] = field(default_factory=Counter)  # by outcome
    skipped_pushes: Counter[str] = field(default_factory=Counter)  # by reason
    events: Counter[str] = field(default_factory=Counter)  # by outcome
    verdicts: Counter[str] = field(default_factory=Counter)  # new or changed ones, by state
    headers: Counter[str] = field(default_factory=Counter)  # by delivery
    polls: Counter[str] = field(default_factory=Counter)  # by outcome, and "suspended"
    rejected_points: int = 0
    episodes: int = 0
    straggles: int = 0  # socket lines about processes that lost their CPU
    evicted_cgroups: int = 0


@dataclass(slots=True)
class LiveCounters:
    """What was read of the ranks on this node, what was sent, and what was not."""

    records: Counter[str] = field(default_factory=Counter)  # by source
    # by operation, counted before anything is left out
    operations: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    barriers: Counter[str] = field(default_factory=Counter)
    own_times: int = 0
    collectives: int = 0
    thinned: int = 0  # collectives that are not part of the sample
    incomplete: int = 0  # steps of groups that were only partly recorded
    dropped: int = 0  # points that waited too long for Fleet
    rejected: int = 0
    refused_ranks: int = 0
    failed_rounds: int = 0
    pushes: Counter[str] = field(default_factory=Counter)  # by outcome
