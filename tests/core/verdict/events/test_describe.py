"""What is said about events: their loss, their ranks and their price."""

import math

import pytest
from tests.support.verdict_tables import POLICY, world

from ingero.contract.verdict import CauseClass, VerdictState
from ingero.core.verdict.events import fleet_events
from ingero.core.verdict.events.describe import describe_fleet_event, describe_group
from ingero.core.verdict.events.groups import Group


def test_the_loss_of_a_slower_cohort_is_the_rise_of_its_own_time_where_steps_are_unknown() -> None:
    registry = world()
    cohorts = registry.cohorts
    cohorts.slow_level[1], cohorts.baseline_level[1] = math.log1p(1 / 6), 0.0
    cohorts.event_since_s[1], cohorts.high_since_s[1], cohorts.sample_s[1] = 500.0, 440.0, 1.0
    found = describe_fleet_event(registry, 1, fleet_events.SLOWER, 8, 8, POLICY)
    assert (found.loss, found.at_most, found.excess) == (0.1429, True, 0.1667)
    assert (found.state, found.job, found.node) == (VerdictState.FLEET_EVENT, "j", "")
    split = describe_fleet_event(registry, 1, fleet_events.SPLIT, 0, 8, POLICY)
    assert (split.loss, split.at_most, split.excess) == (None, False, None)
    assert split.state is VerdictState.NOT_SURE


@pytest.mark.parametrize(
    ("kind", "node", "cause"),
    [("stage", "", CauseClass.STRUCTURAL), ("node", "v", CauseClass.FLEET),
     ("rack", "", CauseClass.FLEET)],
)  # fmt: skip
def test_a_stage_that_is_slow_together_is_structural(
    kind: str, node: str, cause: CauseClass
) -> None:
    found = describe_group(world(), Group(kind, "v", 50.0, 60.0, [0, 1, 2], 4), POLICY)
    assert (found.node, found.cause_class, found.shared) == (node, cause, f"{kind} v")


def test_a_group_is_described_with_its_loss_ranks_and_price() -> None:
    registry = world(ranks=12, usd_per_gpu_hour=1.111)
    rows = registry.rows
    rows.recent_excess[:10] = math.log(1.25)
    group = Group("rack", "r1", 50.0, 60.0, list(range(10)), 12)
    verdict = describe_group(registry, group, POLICY)
    assert (verdict.excess, verdict.loss, verdict.at_most) == (0.25, 0.2, True)
    assert verdict.usd_per_hour == 2.67  # 12 × 1.111 × 0.2 = 2.6664
    assert (verdict.peers, verdict.since, verdict.node) == (12, 50.0, "")
    assert verdict.evidence.endswith("ranks 1, 2, 3, 4, 5, 6, 7, 8 and 2 more")
    rows.recent_excess[:10] = math.log1p(1 / 6)
    verdict = describe_group(registry, group, POLICY)
    assert (verdict.excess, verdict.loss) == (0.1667, 0.1429)
    rows.recent_excess[:10] = -0.1
    assert describe_group(registry, group, POLICY).loss == 0.0
