"""Members of one job in rows, for tests of single rules without an engine."""

import math
from typing import Any

import numpy as np

from ingero.contract.verdict import Verdict, VerdictState
from ingero.core.verdict.job_steps import CalmSteps
from ingero.core.verdict.members import Member, MemberRegistry
from ingero.core.verdict.policy import VerdictPolicy
from ingero.core.verdict.table import HISTORY, STRAGGLER

POLICY = VerdictPolicy()
PEERS = np.arange(1, 8)
CALM = CalmSteps(log_s=0.0, mean_s=1.0, noise=0.001, inflation=1.0, error=0.001, explained=None)
LONG_WARM_UP = VerdictPolicy(warmup_samples=60)
RANKS, NOW_S = 8, 1000.0
OPEN = Verdict(
    episode="e", state=VerdictState.STRAGGLER, node="n1", rank=1, job="j", since=77.0, excess=0.1
)


def world(ranks: int = 8, excess: float = 0.1, **labels: object) -> MemberRegistry:
    """Return members with own times of 1 s, of which the first is slower since a while."""
    registry = MemberRegistry(POLICY)
    for rank in range(1, ranks + 1):
        made = {"cluster": "c", "node": f"n{rank}", "rank": rank, "job": "j", **labels}
        registry.rows.last_seen_s[registry.put(Member(**made), 0.0)] = 100.0  # type: ignore[arg-type]
    rows = registry.rows
    rows.limit[:ranks], rows.scale[:ranks], rows.cusum[0] = 10.0, 0.01, 12.0
    rows.frames[:ranks], rows.own_s[:ranks] = 64, 1.0
    rows.own_s[0] = math.exp(excess)
    rows.recent_excess[:ranks] = 0.0
    rows.recent_excess[0] = excess
    rows.state[0], rows.since_s[0] = STRAGGLER, 77.0
    registry.cohorts.expected[1] = float(ranks)
    return registry


def calm_world() -> MemberRegistry:
    """Return eight calm members with a baseline: scale 0.01, limit 10."""
    registry = MemberRegistry(LONG_WARM_UP)
    for rank in range(1, RANKS + 1):
        member = Member(cluster="c", node=f"n{rank}", rank=rank, job="j")
        registry.rows.last_seen_s[registry.put(member, 0.0)] = NOW_S
    rows = registry.rows
    rows.limit[:RANKS], rows.scale[:RANKS], rows.k[:RANKS] = 10.0, 0.01, 0.5
    rows.baseline_samples[:RANKS], rows.samples[:RANKS] = HISTORY, 1000
    rows.recent_excess[:RANKS] = 0.0
    rows.advance_limit[:RANKS] = 10.0
    rows.frames[:RANKS], rows.own_s[:RANKS], rows.baseline_log_own[:RANKS] = 64, 1.0, 0.0
    registry.cohorts.expected[1] = float(RANKS)
    return registry


def member(node: str, rank: int = 3, **labels: Any) -> Member:
    return Member(cluster="c", node=node, rank=rank, job="j", **labels)


def stalling(slow_steps: int, of: int = 40, by: float = 1.0) -> MemberRegistry:
    """Return a world whose first member was slow in some of its last steps."""
    registry = world(excess=0.0)
    rows = registry.rows
    rows.own_s[0] = np.nan
    rows.own_s[0, :of] = 1.0
    rows.own_s[0, :slow_steps] = 1.0 + by
    rows.baseline_log_own[0], rows.recent_stalls[0] = 0.0, 3.0
    return registry
