"""The cluster threshold: published numbers, breakdown, smoothing, quorum, coverage, panic."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingero.core.health.threshold import (
    ClusterThreshold,
    PanicReason,
    ThresholdPolicy,
    clamp_raw,
    compute_threshold,
    smooth,
    update_threshold,
)
from ingero.core.robust import MAD_TO_SIGMA, median, median_and_mad
from ingero.errors import ConfigError

POLICY = ThresholdPolicy()
score = st.floats(0.0, 1.0)


def run(
    state: ClusterThreshold,
    scores: list[float],
    seconds: int,
    start_s: float = 0.0,
    **policy: float,
):
    """Tick once a second with the same scores and return the last state."""
    for second in range(seconds):
        state = update_threshold(
            state, scores, len(scores), start_s + second, ThresholdPolicy(**policy)
        )
    return state


@pytest.mark.parametrize(
    ("scores", "k", "centre", "mad", "raw"),
    [
        pytest.param([0.95, 0.96, 0.957, 0.94, 0.97], 2, 0.957, 0.007, 0.9362436, id="89"),
        pytest.param([0.957] * 5, 2, 0.957, 0, 0.957, id="90"),
        pytest.param([0.9] * 4 + [0.3], 2, 0.9, 0, 0.9, id="91"),
        pytest.param([0.9] * 3 + [0.5] * 2, 2, 0.9, 0, 0.9, id="92"),
        pytest.param([0.9] * 5 + [0.6] * 4, 2, 0.9, 0, 0.9, id="93"),
        pytest.param([0.9] * 4 + [0.6] * 4, 2, 0.75, 0.15, 0.30522, id="94"),
        pytest.param(
            [0.95, 0.9499, 0.9501, 0.95, 0.9498, 0.9502, 0.95, 0.94],
            2,
            0.95,
            0.0001,
            0.94970348,
            id="95",
        ),
        pytest.param([0.95, 0.94, 0.96, 0.3], 2, 0.945, 0.01, 0.915348, id="96"),
        pytest.param([1.0] * 8, 2, 1.0, 0, 1.0, id="97"),
        pytest.param([0.957 - 0.012, 0.957, 0.957 + 0.012], 2, 0.957, 0.012, 0.9214176, id="98"),
        pytest.param([0.89, 0.90, 0.91], 2, 0.90, 0.01, 0.870348, id="V1"),
        pytest.param([0.92, 0.91, 0.58, 0.93], 2, 0.915, 0.01, 0.885348, id="V2"),
        pytest.param([0.92, 0.91, 0.58, 0.93], 3, 0.915, 0.01, 0.870522, id="V2-k3"),
        pytest.param([0.92, 0.91, 0.58, 0.93, 0.94], 1.5, 0.92, 0.01, 0.897761, id="V2b-k1.5"),
        pytest.param([0.92, 0.91, 0.58, 0.93, 0.94], 2, 0.92, 0.01, 0.890348, id="V2b"),
        pytest.param([0.92, 0.91, 0.58, 0.93, 0.94], 3, 0.92, 0.01, 0.875522, id="V2b-k3"),
        pytest.param([0.9] * 5, 2, 0.9, 0, 0.9, id="V2d"),
        pytest.param([0.95] * 3 + [0.3] * 3, 2, 0.625, 0.325, -0.338690, id="V2e"),
        pytest.param(
            [0.989 - 0.00004, 0.989, 0.989 + 0.00004], 2, 0.989, 0.00004, 0.988881392, id="V2f"
        ),
    ],
)
def test_published_formula_f002(
    scores: list[float], k: float, centre: float, mad: float, raw: float
) -> None:
    found = compute_threshold(scores, ThresholdPolicy(k=k))
    assert (found.median, found.mad, found.value) == pytest.approx((centre, mad, raw), abs=2e-6)
    assert found.nodes == len(scores)


def test_mean_minus_two_sigma_would_miss_the_slow_node_v2c() -> None:
    scores = [0.92, 0.91, 0.58, 0.93]
    assert np.mean(scores) - 2 * np.std(scores) == pytest.approx(0.540212, abs=2e-6)  # below 0.58
    assert compute_threshold(scores, POLICY).value > 0.58


@given(st.lists(score, min_size=1, max_size=40))
def test_median_and_mad_agree_with_numpy(values: list[float]) -> None:
    centre = float(np.median(values))
    assert median(values) == pytest.approx(centre)
    assert median_and_mad(values) == pytest.approx(
        (centre, float(np.median(np.abs(np.array(values) - centre))))
    )


def test_median_of_nothing_is_refused() -> None:
    with pytest.raises(ValueError, match="no values"):
        median([])


@given(healthy=st.lists(st.floats(0.8, 1.0), min_size=5, max_size=5), k=st.floats(1.0, 4.0))
def test_two_bad_nodes_of_five_move_the_threshold_by_a_bounded_amount_f003(
    healthy: list[float], k: float
) -> None:
    policy = ThresholdPolicy(k=k)
    moved = (
        compute_threshold([*healthy[:3], 0.1, 0.1], policy).value
        - compute_threshold(healthy, policy).value
    )
    spread = max(healthy) - min(healthy)
    assert abs(moved) <= (1 + k * MAD_TO_SIGMA) * spread + 1e-9


@given(healthy=st.lists(st.floats(0.97, 1.0), min_size=3, max_size=20), data=st.data())
def test_minority_of_stragglers_cannot_hide(healthy: list[float], data: st.DataObject) -> None:
    slow = data.draw(st.lists(st.floats(0.0, 0.2), min_size=1, max_size=len(healthy) - 1))
    assert max(slow) < compute_threshold(healthy + slow, POLICY).value


def test_ema_sequence_v3_f004() -> None:
    value: float | None = None
    seen = []
    for raw in (0.90, 0.80, 0.80, 0.80):
        value = smooth(value, raw, 0.2)
        seen.append(value)
    assert seen == pytest.approx([0.90, 0.88, 0.864, 0.8512], abs=1e-9)


def test_ema_step_response_vector_99() -> None:
    share = {}
    value = 0.0
    for n in range(1, 22):
        value = smooth(value, 1.0, 0.2)
        share[n] = value
    assert [share[n] for n in (1, 3, 5, 10, 14, 21)] == pytest.approx(
        [0.2, 0.488, 0.672, 0.893, 0.956, 0.991], abs=5e-4
    )


def test_healthy_three_node_set_is_served_about_0_88_f024() -> None:
    state = run(ClusterThreshold(), [0.989] * 3, 60, statistical_min=3)
    assert state.quorum_met
    assert state.served is not None
    assert 0.85 <= state.served <= 0.90


def test_ema_moves_once_per_push_interval_f043() -> None:
    state = run(ClusterThreshold(), [0.80] * 5, 1)
    assert state.ema == pytest.approx(0.80)
    held = run(state, [0.90] * 5, 9, start_s=1)
    assert held.ema == pytest.approx(0.80)
    assert run(held, [0.90] * 5, 1, start_s=10).ema == pytest.approx(0.82)


def test_identical_scores_flag_nobody_v2d_vector_90() -> None:
    state = run(ClusterThreshold(), [0.85] * 5, 100)
    assert state.served == pytest.approx(0.83)
    assert state.below == 0


def test_a_perfect_fleet_is_served_a_threshold_agents_accept_vector_97() -> None:
    assert run(ClusterThreshold(), [1.0] * 8, 10).served == 0.90
    assert run(ClusterThreshold(), [1.0] * 8, 10, max=0.99).served == pytest.approx(0.98)


@given(st.lists(score, min_size=1, max_size=12), st.integers(0, 40))
def test_served_value_is_always_deliverable(scores: list[float], seconds: int) -> None:
    state = run(ClusterThreshold(), scores, seconds + 1)
    assert state.served is not None
    assert 0.10 <= state.served <= 0.99


def test_quorum_needs_statistical_min_nodes_f045_f015() -> None:
    assert not run(ClusterThreshold(), [0.9] * 4, 5).quorum_met
    assert run(ClusterThreshold(), [0.9] * 5, 5).quorum_met
    assert not run(ClusterThreshold(), [0.9] * 2, 5, statistical_min=3).quorum_met
    assert run(ClusterThreshold(), [0.9] * 3, 5, statistical_min=3).quorum_met


def test_coverage_warns_and_still_serves_f046() -> None:
    state = update_threshold(ClusterThreshold(), [0.9] * 7, 10, 0.0, POLICY)
    assert (state.coverage, state.coverage_low, state.quorum_met) == (0.7, True, True)
    assert not update_threshold(ClusterThreshold(), [0.9] * 8, 10, 0.0, POLICY).coverage_low


def test_ema_outlives_a_short_loss_of_quorum_and_not_a_long_one() -> None:
    state = run(ClusterThreshold(), [0.8] * 5, 5)
    short = run(state, [0.8] * 4, 20, start_s=5)
    assert (short.quorum_met, short.ema) == (False, pytest.approx(0.8))
    assert run(short, [0.8] * 4, 60, start_s=25).ema is None


def test_threshold_of_a_vanished_cluster_is_forgotten_after_the_ttl() -> None:
    state = run(ClusterThreshold(), [0.8] * 5, 5)
    empty = update_threshold(state, [], 5, 30.0, POLICY)
    assert (empty.served, empty.quorum_met, empty.stats) == (state.served, False, None)
    assert update_threshold(empty, [], 5, 60.0, POLICY).served is None


def test_whole_fleet_falling_at_once_is_panic_and_flags_nobody_f047() -> None:
    before = run(ClusterThreshold(), [0.95] * 8, 60)
    fallen = run(before, [0.60] * 8, 1, start_s=60)
    assert fallen.panic is PanicReason.MEDIAN_FELL
    assert fallen.below == 0
    later = run(fallen, [0.60] * 8, 120, start_s=61)
    assert (later.panic, later.ema, later.below) == (PanicReason.MEDIAN_FELL, before.ema, 0)


def test_half_bad_cluster_panics_and_clamps_v2e() -> None:
    before = run(ClusterThreshold(), [0.95] * 6, 30)
    half = update_threshold(before, [0.95] * 3 + [0.3] * 3, 6, 30.0, POLICY)
    assert half.stats is not None
    assert clamp_raw(half.stats.value, POLICY) == 0.10
    assert half.panic is PanicReason.MEDIAN_FELL


def test_majority_below_the_threshold_is_panic_even_when_the_median_falls_little() -> None:
    before = run(ClusterThreshold(), [0.90] * 8, 30)
    assert before.served == pytest.approx(0.88)
    assert run(before, [0.86] * 8, 1, start_s=30).panic is PanicReason.MAJORITY_BELOW


def test_panic_ends_when_the_median_is_back() -> None:
    fallen = run(run(ClusterThreshold(), [0.95] * 8, 30), [0.5] * 8, 10, start_s=30)
    assert fallen.panic
    assert run(fallen, [0.84] * 8, 5, start_s=40).panic
    assert run(fallen, [0.86] * 8, 5, start_s=40).panic is None


def test_after_five_minutes_the_new_level_is_adopted() -> None:
    before = run(ClusterThreshold(), [0.95] * 8, 30)
    fallen = run(before, [0.5] * 8, 299, start_s=30)
    assert (fallen.panic, fallen.ema) == (PanicReason.MEDIAN_FELL, before.ema)
    adopted = run(fallen, [0.5] * 8, 3, start_s=329)
    assert (adopted.panic, adopted.ema, adopted.below) == (None, pytest.approx(0.5), 0)


def test_no_quorum_while_a_majority_is_below_the_lowest_threshold() -> None:
    state = run(run(ClusterThreshold(), [0.95] * 8, 30), [0.05] * 8, 5, start_s=30)
    assert not state.quorum_met
    assert state.served == 0.10


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("k", 0.9),
        ("k", 4.1),
        ("k", float("nan")),
        ("ema_alpha", 0.0),
        ("ema_alpha", 1.01),
        ("min", 0.05),
        ("max", 0.995),
        ("max", 0.10),
        ("min_gap", -0.01),
        ("min_gap", 0.5),
        ("statistical_min", 0),
        ("coverage_fraction", 1.1),
        ("push_interval_s", 0.5),
        ("ttl_multiplier", 1),
    ],
)
def test_policy_out_of_range_names_the_key_f054(key: str, value: float) -> None:
    with pytest.raises(ConfigError, match=key.removesuffix("_s")):
        ThresholdPolicy(**{key: value})
