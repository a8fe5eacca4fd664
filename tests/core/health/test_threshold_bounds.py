"""The exact bounds of quorum, smoothing, panic and the gap: on the bound, and just beyond it."""

import pytest

from ingero.contract.threshold import QuorumReason
from ingero.core.health.threshold import (
    GAP_WINDOW_S,
    PANIC_MAX_S,
    PANIC_RECOVERED,
    ClusterThreshold,
    PanicReason,
    Threshold,
    ThresholdPolicy,
    reason_without_quorum,
    update_threshold,
)
from ingero.errors import ConfigError

POLICY = ThresholdPolicy()
LEVEL = [0.9] * 6
START_S = 1000.0


def at(state: ClusterThreshold, now_s: float, scores: list[float]) -> ClusterThreshold:
    return update_threshold(state, scores, len(scores), now_s, POLICY)


def settled(now_s: float = START_S) -> ClusterThreshold:
    return at(ClusterThreshold(), now_s, LEVEL)


def panicking(median_before: float = 0.9) -> ClusterThreshold:
    return ClusterThreshold(
        stats=Threshold(0.4, 0.5, 0.0, 6), ema=0.8, served=0.4, panic=PanicReason.MEDIAN_FELL,
        panic_since_s=START_S, median_before=median_before, quorum_met=True, quorum_seen_s=START_S,
    )  # fmt: skip


def test_a_cluster_begins_without_threshold_quorum_or_panic() -> None:
    assert ClusterThreshold() == ClusterThreshold(
        stats=None, ema=None, ema_at_s=0.0, served=None, quorum_met=False, quorum_seen_s=0.0,
        coverage=0.0, coverage_low=False, below=0, panic=None, panic_since_s=0.0,
        median_before=0.0, low_medians=(),
    )  # fmt: skip


@pytest.mark.parametrize(("low", "quorum_met"), [(2, True), (3, True), (4, False)])
def test_quorum_holds_until_more_than_half_are_below_the_lowest_threshold(
    low: int, quorum_met: bool
) -> None:
    scores = [POLICY.min / 2] * low + [0.9] * (6 - low)
    assert at(ClusterThreshold(), START_S, scores).quorum_met is quorum_met


@pytest.mark.parametrize(("late_s", "is_kept"), [(0.0, True), (0.5, False)])
def test_the_average_outlives_its_quorum_by_exactly_the_ttl(late_s: float, is_kept: bool) -> None:
    lost = at(settled(), START_S + POLICY.ttl_s + late_s, LEVEL[:2])
    assert not lost.quorum_met
    assert (lost.ema is not None) is is_kept


@pytest.mark.parametrize(("late_s", "is_kept"), [(0.0, True), (0.5, False)])
def test_a_cluster_without_scores_is_forgotten_after_the_ttl(late_s: float, is_kept: bool) -> None:
    gone = at(settled(), START_S + POLICY.ttl_s + late_s, [])
    assert (gone.served is not None) is is_kept
    assert (gone.stats, gone.quorum_met, gone.below, gone.panic) == (None, False, 0, None)


def test_the_average_moves_exactly_one_push_interval_after_it_moved_last() -> None:
    first = settled()
    early = at(first, START_S + POLICY.push_interval_s - 0.5, [0.89] * 6)
    assert (early.ema, early.ema_at_s) == (first.ema, START_S)
    due = at(early, START_S + POLICY.push_interval_s, [0.89] * 6)
    assert due.ema_at_s == START_S + POLICY.push_interval_s
    assert due.ema != first.ema


@pytest.mark.parametrize(("after_s", "is_over"), [(PANIC_MAX_S - 1, False), (PANIC_MAX_S, True)])
def test_panic_ends_after_five_minutes(after_s: float, is_over: bool) -> None:
    assert PANIC_MAX_S == 300
    now = at(panicking(), START_S + after_s, [0.5] * 6)
    assert (now.panic is None) is is_over
    assert now.ema == (0.5 if is_over else 0.8), "then the new level is accepted"


@pytest.mark.parametrize(("change", "is_over"), [(0.0, True), (-0.01, False)])
def test_panic_ends_once_the_median_is_back_at_its_share(change: float, is_over: bool) -> None:
    before = 0.8
    back = at(panicking(before), START_S + 10, [PANIC_RECOVERED * before + change] * 6)
    assert (back.panic is None) is is_over


@pytest.mark.parametrize(("low", "panics"), [(3, False), (4, True)])
def test_panic_needs_more_than_half_below_the_served_threshold(low: int, panics: bool) -> None:
    first = settled()
    assert first.served is not None
    under = first.served - 0.001
    now = at(first, START_S + 1, [under] * low + [0.9] * (6 - low))
    assert now.panic is (PanicReason.MAJORITY_BELOW if panics else None)
    assert now.median_before == (0.9 if panics else 0.0)
    assert now.panic_since_s == (START_S + 1 if panics else 0.0)


@pytest.mark.parametrize(("after_s", "is_held"), [(GAP_WINDOW_S, True), (GAP_WINDOW_S + 1, False)])
def test_a_low_median_counts_for_exactly_the_window(after_s: float, is_held: bool) -> None:
    dip = at(settled(), START_S, [0.85] * 6)
    now = at(dip, START_S + after_s, LEVEL)
    assert (now.low_medians[0][1] == 0.85) is is_held
    assert now.low_medians[-1] == (START_S + after_s, 0.9)


def test_a_cluster_without_expected_nodes_is_covered() -> None:
    state = update_threshold(ClusterThreshold(), LEVEL, 0, START_S, POLICY)
    assert (state.coverage, state.coverage_low) == (1.0, False)
    assert update_threshold(ClusterThreshold(), LEVEL, 1, START_S, POLICY).coverage == 6.0


def test_an_empty_range_of_thresholds_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"max: 0\.5 is out of range; allowed: above min"):
        ThresholdPolicy(min=0.5, max=0.5)
    assert ThresholdPolicy(min=0.5, max=0.51).max == 0.51


def test_a_node_at_the_threshold_is_not_below_it() -> None:
    first = settled()
    assert first.served is not None
    now = at(first, START_S + 1, [first.served, *LEVEL[1:]])
    assert (now.served, now.below, now.panic) == (first.served, 0, None)
    assert at(first, START_S + 1, [first.served - 0.001, *LEVEL[1:]]).below == 1
    all_at = at(first, START_S + 1, [first.served] * 6)
    assert all_at.panic is None, "nobody is below"


@pytest.mark.parametrize(("median", "panics"), [(0.5, True), (0.56, False), (0.559, True)])
def test_a_median_panics_when_it_loses_more_than_its_share(median: float, panics: bool) -> None:
    before = ClusterThreshold(stats=Threshold(0.7, 0.8, 0.0, 6), served=0.1)
    now = at(before, START_S, [median] * 6)
    assert (now.panic is PanicReason.MEDIAN_FELL) is panics


def test_panic_needs_as_many_nodes_as_a_quorum() -> None:
    before = ClusterThreshold(stats=Threshold(0.7, 0.8, 0.0, 6), served=0.1)
    assert at(before, START_S, [0.2] * POLICY.statistical_min).panic is PanicReason.MEDIAN_FELL
    assert at(before, START_S, [0.2] * (POLICY.statistical_min - 1)).panic is None


def test_of_equal_medians_the_latest_is_kept() -> None:
    twice = at(settled(), START_S + 5, LEVEL)
    assert twice.low_medians == ((START_S + 5, 0.9),)


def test_the_reason_without_quorum_is_a_panic_or_few_nodes() -> None:
    enough = Threshold(0.7, 0.8, 0.0, POLICY.statistical_min)
    few = Threshold(0.7, 0.8, 0.0, POLICY.statistical_min - 1)
    panic = PanicReason.MEDIAN_FELL
    assert [
        reason_without_quorum(state, POLICY)
        for state in (
            ClusterThreshold(stats=enough, quorum_met=True),
            ClusterThreshold(),
            ClusterThreshold(stats=few),
            ClusterThreshold(stats=enough),
            ClusterThreshold(stats=few, panic=panic),
            ClusterThreshold(panic=panic),
        )
    ] == [None, *[QuorumReason.FEW_NODES] * 2, *[QuorumReason.PANIC] * 3]
