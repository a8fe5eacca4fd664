"""The answers of Fleet's HTTP API, key by key as clients of the published API expect them.

A value that Fleet does not have is null. Durations are seconds, scores are 0 to 1.
"""

from typing import Generic, TypeVar

import msgspec

from ingero.contract.silence import Silence
from ingero.contract.verdict import Verdict


class NodeStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One node as it last reported; `state` is `silent` where it stopped pushing."""

    node_id: str
    score: float | None
    state: str
    below_threshold: bool
    straggler: bool
    straggler_for_s: float | None
    mode: str | None
    workload_type: str
    last_push_s_ago: float
    known_for_s: float
    pushes: int
    sent_unix_ns: int
    degraded: bool | None
    job_id: str | None
    rank: int | None
    world_size: int | None
    provider: str | None
    gpu_model: str | None
    gpu_count: int | None
    silenced: str | msgspec.UnsetType = msgspec.UNSET  # until when and why; not in /debug/scores


class RankCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks of a cluster that have a baseline, and ranks whose baseline is still being learned.

    `without_steps` are those in whose collectives no repeating step is recognised. `ready_s` is in
    how many seconds the last one that learns will have a baseline, if all steps stay as they are.
    """

    judged: int = 0
    learning: int = 0
    without_steps: int = 0
    ready_s: float | None = None


class IdleGpus(msgspec.Struct, frozen=True, kw_only=True):
    """GPUs of nodes on which nothing runs, and what they cost; `unpriced` of them have no price."""

    gpus: int = 0
    usd_per_hour: float = 0.0
    unpriced: int = 0


class ClusterSummary(msgspec.Struct, frozen=True, kw_only=True):
    """The served threshold of a cluster and the figures that it was computed from."""

    cluster_id: str
    threshold: float | None
    quorum_met: bool
    raw_threshold: float | None
    ema: float | None
    median: float | None
    mad: float | None
    nodes_by_state: dict[str, int]
    coverage: float | None
    coverage_low: bool
    panic: str | None
    below_threshold: int
    idle_gpus: IdleGpus = IdleGpus()


Node = TypeVar("Node")  # NodeStatus for a client; the same already encoded for Fleet itself


class ClusterStatus(ClusterSummary, Generic[Node], frozen=True, kw_only=True):
    """A cluster with its nodes and its open and just resolved verdicts."""

    nodes: list[Node]
    ranks: RankCounts = RankCounts()
    verdicts: list[Verdict] = []


class ClusterScores(ClusterSummary, Generic[Node], frozen=True, kw_only=True):
    """A cluster with its nodes, as the diagnostics page on loopback shows it."""

    nodes: list[Node]
    truncated: bool


class Status(msgspec.Struct, Generic[Node], frozen=True):
    """Every cluster that has pushed, by name."""

    clusters: list[ClusterStatus[Node]]


class ClusterList(msgspec.Struct, frozen=True):
    """The summary of every cluster, by name."""

    clusters: list[ClusterSummary]


class SilenceList(msgspec.Struct, frozen=True):
    """The silences in force, the first to end first."""

    silences: list[Silence]


class LiftedSilences(msgspec.Struct, frozen=True):
    """The silences that a request ended."""

    lifted: list[Silence]


class Limits(msgspec.Struct, omit_defaults=True, forbid_unknown_fields=True):
    """Limits of the threshold and the quorum; in a request, those that are missing are kept."""

    k: float | None = None
    ema_alpha: float | None = None
    min: float | None = None
    max: float | None = None
    min_gap: float | None = None
    statistical_min: int | None = None
    coverage_fraction: float | None = None
