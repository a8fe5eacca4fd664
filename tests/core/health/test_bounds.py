"""The exact bounds of baseline, score, lifecycle, modes and starvation, and just beyond them."""

import math

import pytest

from ingero.contract.types import NodeState
from ingero.core.health.baseline import (
    Baseline,
    BaselinePolicy,
    baseline_signals,
    hard_floor,
    is_degraded,
    relative_signals,
    same_alphas,
)
from ingero.core.health.classifier import Classification, ClassifierPolicy, classify
from ingero.core.health.lifecycle import Lifecycle, LifecyclePolicy, Reading, update_lifecycle
from ingero.core.health.modes import Delivery, FleetThreshold, ModePolicy, decide_mode, should_poll
from ingero.core.health.recorded_score import MINUTE_NS, recorded_scores
from ingero.core.health.score import (
    ScorePolicy,
    Signals,
    Weights,
    dominant_signal,
    penalty,
    work_score,
)
from ingero.core.health.starvation import (
    FORGET_AFTER,
    Activity,
    StraggleWatch,
    check_straggle,
)
from ingero.errors import ConfigError

POLICY = BaselinePolicy()
ZERO = Signals(0.0, 0.0, 0.0, 0.0)


@pytest.mark.parametrize("wrong", [None, math.nan, math.inf, -0.1])
@pytest.mark.parametrize("part", ["fast", "floor"])
def test_a_baseline_has_no_missing_negative_or_infinite_average(
    part: str, wrong: float | None
) -> None:
    with pytest.raises(ValueError, match="an average is missing, negative or not finite"):
        Baseline(sample_count=1, **{part: Signals(0.0, 0.0, wrong, 0.0)})


@pytest.mark.parametrize(
    ("samples", "counts"), [(-1, (0, 0, 0, 0)), (3, (3, 4, 3, 3)), (3, (3, 3, -1, 3))]
)
def test_a_baseline_has_no_more_samples_of_a_signal_than_in_all(
    samples: int, counts: tuple[int, int, int, int]
) -> None:
    with pytest.raises(ValueError, match="more samples than the whole baseline"):
        Baseline(sample_count=samples, counts=counts)
    assert Baseline(sample_count=3, counts=(0, 3, 3, 3)).counts == (0, 3, 3, 3)


def test_a_signal_that_was_never_measured_is_zero_whatever_its_average() -> None:
    odd = Baseline(sample_count=2, fast=Signals(5.0, 5.0, 5.0, 5.0), counts=(0, 1, 2, 2))
    assert baseline_signals(odd, POLICY).throughput == 0.0
    assert baseline_signals(odd, POLICY).compute == pytest.approx(50.0)
    assert hard_floor(odd, POLICY) == ZERO


def level(fast: float, floor: float, **policy: float) -> bool:
    """Whether a warm node with these averages of one signal is degraded."""
    many = 10**6  # samples: no correction is left
    chosen = BaselinePolicy(**policy)
    averages = [Signals(1.0, value, 1.0, 1.0) for value in (fast, floor)]
    return is_degraded(
        Baseline(sample_count=many, fast=averages[0], floor=averages[1], counts=(many,) * 4), chosen
    )


def test_a_node_is_degraded_below_the_ratio_and_not_at_it() -> None:
    assert not level(0.25, 0.5)
    assert level(0.2499, 0.5)


def test_the_ratio_is_applied_from_the_least_level_on() -> None:
    assert level(0.1, 0.5, floor_warmth_min=0.5)
    assert not level(0.1, 0.4999, floor_warmth_min=0.5)
    assert not level(0.0, 0.0, floor_warmth_min=0.0)


def test_averages_of_other_factors_cannot_be_used() -> None:
    assert same_alphas(0.1 + 5e-10, 0.001, POLICY)
    assert not same_alphas(0.2, 0.001, POLICY)
    assert not same_alphas(0.1, 0.002, POLICY)


@pytest.mark.parametrize("rate", [math.nan, math.inf])
def test_a_rate_that_is_no_number_counts_as_none_at_all(rate: float) -> None:
    warm = Baseline(sample_count=1, fast=Signals(0.05, 0.0, 0.0, 0.0), counts=(1, 1, 1, 1))
    assert relative_signals(warm, Signals(rate), POLICY).throughput == 0.0
    assert relative_signals(warm, Signals(0.25), POLICY).throughput == pytest.approx(0.5)


def test_averages_that_move_alike_are_refused() -> None:
    with pytest.raises(ConfigError, match="floor_alpha"):
        BaselinePolicy(fast_alpha=0.1, floor_alpha=0.1)


def test_the_penalty_begins_and_ends_exactly_at_its_zone() -> None:
    narrow = ScorePolicy(degradation_zone=0.5, penalty_floor=0.25)
    assert [penalty(lowest, narrow) for lowest in (0.5, 0.375, 0.25)] == [1.0, 0.75, 0.5]
    with pytest.raises(ConfigError, match="penalty_floor"):
        ScorePolicy(degradation_zone=0.3, penalty_floor=0.3)


def test_weights_may_be_rounded_and_not_wrong() -> None:
    assert Weights(throughput=0.4000005).throughput == 0.4000005
    with pytest.raises(ConfigError, match="weights"):
        Weights(throughput=0.400002)


@pytest.mark.parametrize(
    ("signals", "expected"),
    [
        ((None, None, 0.9, 0.9), None),
        ((None, 0.9, 0.9, 0.9), 0.9),
        ((0.9, None, 0.9, 0.9), 0.9),
        ((0.9, 0.9, 0.1, 0.9), 0.9 * 0.8 + 0.8 * 0.2),
        ((0.9, 0.9, 0.9, 0.1), 0.9 * 0.85 + 0.8 * 0.15),
        ((0.9, 0.9, 0.8, 0.8), 0.9 * 0.65 + 0.8 * 0.35),
        ((0.9, 0.9, None, None), 0.9),
    ],
)
def test_the_score_of_work_has_at_least_the_usual_memory_and_cpu(
    signals: tuple[float | None, ...], expected: float | None
) -> None:
    found = work_score(Signals(*signals), Signals(100.0, 0.9, 0.8, 0.8), ScorePolicy())
    assert found == (None if expected is None else pytest.approx(expected))


def test_the_score_of_work_without_a_usual_level_is_the_measured_one() -> None:
    found = work_score(Signals(0.9, 0.9, 0.5, 0.5), Signals(), ScorePolicy())
    assert found == pytest.approx(0.9 * 0.65 + 0.5 * 0.35)


def test_signals_without_a_usual_level_are_not_the_dominant_one() -> None:
    raw = Signals(None, 0.4, 0.5, 0.1)
    assert dominant_signal(raw, Signals(100.0, 0.0, 1.0, None)) == "memory"
    assert dominant_signal(Signals(-1.0, 0.5), Signals(0.0, 1.0)) == "compute"


def test_a_snapshot_belongs_to_the_minute_that_it_begins() -> None:
    rates = [(0, 1.0), (MINUTE_NS, 1.0)]
    scores = recorded_scores(rates, [(MINUTE_NS, 0.0, 100.0)])
    assert scores[0] == (0, 1.0)
    assert scores[1][1] == pytest.approx((0.40 + 0.15) / 0.75 * 0.5)


def test_minutes_without_calls_do_not_change_what_is_typical() -> None:
    scores = recorded_scores([(0, 0.0), (1, 0.5), (2, 0.5), (3, 0.0), (4, 0.0)], [])
    assert [score for _, score in scores] == [0.0, 1.0, 1.0, 0.0, 0.0]


def test_a_reading_up_to_a_minute_ahead_counts_and_a_later_one_failed() -> None:
    policy = LifecyclePolicy()
    ahead = update_lifecycle(Lifecycle(), Reading(at_s=60.0, launches=1), 0.0, policy, 0)
    assert (ahead.failures, ahead.state) == (0, NodeState.ACTIVE)
    later = update_lifecycle(Lifecycle(), Reading(at_s=60.5, launches=1), 0.0, policy, 0)
    assert (later.failures, later.state) == (1, NodeState.CALIBRATING)


def test_one_launch_wakes_an_idle_node_and_none_leaves_it_idle() -> None:
    policy = LifecyclePolicy(idle_intervals=1)
    idle = Lifecycle(state=NodeState.IDLE)
    still = update_lifecycle(idle, Reading(at_s=0.0, launches=0), 0.0, policy, 1)
    assert (still.state, still.woke, still.recent) == (NodeState.IDLE, False, ((0.0, 0),))
    awake = update_lifecycle(still, Reading(at_s=1.0, launches=1), 1.0, policy, 1)
    assert (awake.state, awake.woke, awake.samples) == (NodeState.CALIBRATING, True, 1)


def test_counters_begin_again_with_every_change_of_state() -> None:
    policy = LifecyclePolicy(idle_intervals=3, stale_read_failures=1)
    counted = Lifecycle(state=NodeState.ACTIVE, zeros=2, samples=1)
    stale = update_lifecycle(counted, Reading(at_s=0.0, launches=None), 0.0, policy, 2)
    assert (stale.state, stale.zeros, stale.samples) == (NodeState.STALE, 0, 0)
    idle = update_lifecycle(counted, Reading(at_s=0.0, launches=0), 0.0, policy, 2)
    assert (idle.state, idle.zeros) == (NodeState.IDLE, 0)
    ready = Lifecycle(samples=1, zeros=2)
    active = update_lifecycle(ready, Reading(at_s=0.0, launches=1), 0.0, policy, 2)
    assert (active.state, active.zeros, active.samples) == (NodeState.ACTIVE, 0, 0)
    busy = update_lifecycle(counted, Reading(at_s=0.0, launches=1), 0.0, policy, 2)
    assert (busy.state, busy.zeros) == (NodeState.ACTIVE, 0)
    young = update_lifecycle(Lifecycle(zeros=2), Reading(at_s=0.0, launches=1), 0.0, policy, 2)
    assert (young.state, young.zeros, young.samples) == (NodeState.CALIBRATING, 0, 1)


@pytest.mark.parametrize("factor", [0.0, 1.0])
def test_the_local_factor_is_between_zero_and_one(factor: float) -> None:
    with pytest.raises(ConfigError, match="local_baseline_factor"):
        ModePolicy(local_baseline_factor=factor)
    assert ModePolicy(push_interval_s=0.5, cached_max_age_s=0.5).fresh_max_age_s(0.0) == 1.0


def test_a_long_push_interval_keeps_a_threshold_for_twice_its_fresh_time() -> None:
    policy = ModePolicy(push_interval_s=100.0)
    assert (policy.fresh_max_age_s(10.0), policy.kept_max_age_s(10.0)) == (210.0, 420.0)
    assert ModePolicy().kept_max_age_s(0.0) == 300.0


def decided(age_s: float, *, reachable: bool = False, quorum: bool = True) -> tuple[str, bool]:
    found = decide_mode(
        FleetThreshold(0.8, quorum, 1000.0 - age_s),
        reachable=reachable, is_warm=True, now_s=1000.0, policy=ModePolicy(), quorum_seen=True,
    )  # fmt: skip
    return found.mode.value, found.may_raise


def test_a_threshold_is_used_up_to_and_including_its_age() -> None:
    assert decided(0.0) == ("fleet", True)
    assert decided(10.0) == ("fleet", True)
    assert decided(10.5) == ("local-cached", True)
    assert decided(300.0) == ("local-cached", True)
    assert decided(300.5) == ("local-baseline", True)
    assert decided(10.5, reachable=True) == ("fleet-cached", True)
    assert decided(10.5, quorum=False) == ("fleet-cached", False)
    assert decided(300.5, reachable=True) == ("local-baseline", True)


def test_polling_pauses_for_exactly_the_age_of_a_header() -> None:
    headed = Delivery(header_at_s=10.0)
    assert [should_poll(headed, now, 5.0) for now in (9.5, 10.0, 15.0, 15.5)] == [
        True, False, False, True,
    ]  # fmt: skip


def test_a_score_within_a_rounding_error_of_the_threshold_is_not_below_it() -> None:
    one, threshold = ClassifierPolicy(confirmations=1), 0.8

    def after(score: float) -> Classification:
        return classify(Classification(), score, threshold, one, node="n", now_ns=1)

    assert not after(threshold - 5e-10).is_straggler
    assert after(threshold - 5e-9).is_straggler
    within = after(0.5)
    for score, is_over in ((0.82 - 5e-10, True), (0.82 - 5e-9, False)):
        assert (not classify(within, score, threshold, one, node="n", now_ns=2).is_straggler) is (
            is_over
        )


def test_each_evaluation_below_the_threshold_starts_the_recovery_again() -> None:
    one = ClassifierPolicy(confirmations=1)
    state = classify(Classification(), 0.5, 0.8, one, node="n", now_ns=1)
    for score in (0.805, 0.805, 0.79, 0.805):
        state = classify(state, score, 0.8, one, node="n", now_ns=2)
    assert (state.above, state.sequence) == (1, 5)


def checked(*checks: tuple[float, int, int]) -> tuple[StraggleWatch, list[float]]:
    """Check one process at (time, launches, switches); return the state and the last drops."""
    watch, drops = StraggleWatch(), []
    for at_s, launches, switches in checks:
        watch, found = check_straggle(watch, {1: Activity(launches, switches)}, at_s)
        drops = [each.drop_percent for each in found]
    return watch, drops


def test_rates_are_per_second_of_elapsed_time() -> None:
    _, drops = checked((0, 9, 0), *[(at, 100, 0) for at in (4, 8, 12)], (14, 25, 20))
    assert drops == [pytest.approx(50.0)]


def test_a_loss_of_exactly_the_least_share_is_none() -> None:
    calm = [(float(at), 100, 0) for at in range(5)]
    assert checked(*calm, (5.0, 70, 20))[1] == []
    assert checked(*calm, (5.0, 69, 20))[1] != []


def test_three_samples_are_needed_and_the_third_is_one() -> None:
    start = [(0.0, 100, 0), (1.0, 100, 0), (2.0, 100, 0)]
    assert checked(*start[:2], (2.0, 10, 20))[1] == [], "only two samples"
    assert checked(*start, (3.0, 10, 20))[1] == [pytest.approx((82 - 10) / 82 * 100)]


def test_checks_without_work_are_counted_and_work_starts_the_count_again() -> None:
    idle = [(float(at), 0, 0) for at in range(2, 2 + FORGET_AFTER - 1)]
    watch, _ = checked((0.0, 1, 0), (1.0, 1, 0), *idle)
    assert watch.processes is not None
    assert watch.processes[1].idle_checks == FORGET_AFTER - 1
    worked, _ = check_straggle(watch, {1: Activity(1, 0)}, 100.0)
    assert worked.processes is not None
    assert worked.processes[1].idle_checks == 0
    forgotten, _ = check_straggle(watch, {}, 100.0)
    assert forgotten.processes == {}


def test_every_process_starts_again_when_no_time_has_passed() -> None:
    watch, _ = check_straggle(StraggleWatch(), {1: Activity(1, 0), 2: Activity(1, 0)}, 5.0)
    assert sorted(watch.processes or ()) == [1, 2]
    again, found = check_straggle(watch, {1: Activity(1, 0), 3: Activity(1, 0)}, 5.0)
    assert (sorted(again.processes or ()), found) == ([1, 2, 3], [])


def test_scores_within_a_rounding_error_confirm_nothing() -> None:
    two = ClassifierPolicy(confirmations=2)
    near = classify(Classification(), 0.8 - 5e-10, 0.8, two, node="n", now_ns=1)
    assert near.recent == ()
    before = Classification(recent=(0.8 - 5e-10,))
    assert not classify(before, 0.5, 0.8, two, node="n", now_ns=1).is_straggler
    before = Classification(recent=(0.8 - 5e-9,))
    assert classify(before, 0.5, 0.8, two, node="n", now_ns=1).is_straggler


def test_a_node_that_never_saw_a_quorum_is_alone() -> None:
    found = decide_mode(
        FleetThreshold(0.8, False, 1000.0),
        reachable=True, is_warm=True, now_s=1000.0, policy=ModePolicy(), baseline_score=0.9,
    )  # fmt: skip
    assert found.mode.value == "local-baseline"


def test_the_first_rate_starts_the_baseline() -> None:
    rates = [(0.0, 9, 0), (1.0, 200, 0), (2.0, 100, 0), (3.0, 100, 0), (4.0, 10, 20)]
    assert checked(*rates)[1] == [pytest.approx((164 - 10) / 164 * 100)]
