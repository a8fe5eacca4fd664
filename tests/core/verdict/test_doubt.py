"""Who is "not sure": half of a small role is slow, or nobody else has it."""

import pytest
from tests.support.verdict_tables import POLICY, world

from ingero.contract.verdict import VerdictState
from ingero.core.verdict.table import ADVANCE, FAST, STALL, STRAGGLER, SUSPECT
from ingero.core.verdict.verdicts import describe_member


@pytest.mark.parametrize(
    ("ranks", "slow", "is_sure"),
    [(2, 2, False), (3, 1, True), (3, 2, False), (4, 1, True), (4, 2, False), (5, 3, True),
     (8, 3, True)],
)  # fmt: skip
def test_half_of_a_few_that_are_slow_leaves_a_doubt(ranks: int, slow: int, is_sure: bool) -> None:
    registry = world(ranks)
    registry.rows.state[:slow], registry.rows.recent_excess[:slow] = STRAGGLER, 0.1
    verdict = describe_member(registry, 0, POLICY)
    assert (verdict.state is VerdictState.STRAGGLER) == is_sure
    assert ("so the others may be the unusual ones" in verdict.evidence) != is_sure


@pytest.mark.parametrize(
    ("channel", "excess", "is_sure"),
    [(FAST, 0.06, False), (FAST, 0.04, True), (STALL, 0.1, True), (ADVANCE, 0.1, True)],
)
def test_another_that_is_slow_too_leaves_a_doubt_if_it_is_nearly_as_slow_in_the_same_way(
    channel: int, excess: float, is_sure: bool
) -> None:
    registry = world(4)
    rows = registry.rows
    rows.state[1], rows.channel[1], rows.recent_excess[1] = SUSPECT, channel, excess
    rows.stall_size[1] = excess
    assert (describe_member(registry, 0, POLICY).state is VerdictState.STRAGGLER) == is_sure


@pytest.mark.parametrize(("advance", "is_sure"), [(0.05, False), (0.04, True)])
def test_who_is_waited_for_is_compared_with_others_by_that(advance: float, is_sure: bool) -> None:
    registry = world(4)
    rows = registry.rows
    rows.state[1], rows.channel[:2] = SUSPECT, ADVANCE
    rows.advance_recent[0], rows.advance_recent[1] = 0.1, advance
    assert (describe_member(registry, 0, POLICY).state is VerdictState.STRAGGLER) == is_sure


def test_a_member_without_peers_of_its_role_is_in_doubt() -> None:
    registry = world()
    registry.cohorts.expected[1] = 1.0
    registry.cohorts.is_small[1] = True
    verdict = describe_member(registry, 0, POLICY)
    assert verdict.state is VerdictState.NOT_SURE
    assert "nobody else has its role" in verdict.evidence
    assert "against its own baseline and the other ranks of the job" in verdict.evidence
    registry.cohorts.is_alone[1] = True
    alone = describe_member(registry, 0, POLICY)
    assert (alone.state, alone.loss, alone.usd_per_hour) == (VerdictState.NOT_SURE, None, None)
    assert "its own baseline (fewer than 3 members)" in alone.evidence


@pytest.mark.parametrize("channel", [ADVANCE, STALL])
def test_one_of_two_that_the_other_waits_for_or_that_stalls_is_named(channel: int) -> None:
    registry = world(ranks=2)
    registry.cohorts.is_small[1] = registry.cohorts.is_alone[1] = True
    assert describe_member(registry, 0, POLICY).state is VerdictState.NOT_SURE
    registry.rows.channel[0], registry.rows.stall_size[0] = channel, 0.9
    registry.rows.recent_stalls[0], registry.rows.recent_steps[0] = 10.0, 100.0
    verdict = describe_member(registry, 0, POLICY)
    assert verdict.state is VerdictState.STRAGGLER
    assert verdict.loss is not None


def test_two_members_of_a_role_are_enough_to_be_sure() -> None:
    registry = world()
    registry.cohorts.expected[1] = 2.0
    assert describe_member(registry, 0, POLICY).state is VerdictState.STRAGGLER
    registry.cohorts.expected[1] = 1.0
    assert describe_member(registry, 0, POLICY).state is VerdictState.NOT_SURE
