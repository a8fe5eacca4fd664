"""The health score: published vectors, anomalies, missing signals, dominant signal."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingero.core.health.score import (
    ScorePolicy,
    Signals,
    Weights,
    compute_score,
    dominant_signal,
    penalty,
)
from ingero.errors import ConfigError

NAN, INF = math.nan, math.inf
POLICY = ScorePolicy()
reading = st.one_of(st.none(), st.floats(allow_nan=True, allow_infinity=True))


def value(*signals: float | None, policy: ScorePolicy = POLICY) -> float:
    score = compute_score(Signals(*signals), policy)
    assert score is not None
    return score.value


@pytest.mark.parametrize(
    ("signals", "expected"),
    [
        pytest.param((0.9, 0.9, 0.9, 0.9), 0.9, id="1"),
        pytest.param((0.40, 0.90, 0.90, 0.90), 0.70, id="2"),
        pytest.param((0.35, 0.80, 0.80, 0.80), 0.62, id="3"),
        pytest.param((0.25, 0.80, 0.80, 0.80), 0.29, id="4"),
        pytest.param((0.30, 0.80, 0.80, 0.80), 0.45, id="5"),
        pytest.param((0.10, 0.80, 0.80, 0.80), 0.26, id="6-f050"),
        pytest.param((NAN, 0.9, 0.9, 0.9), 0.27, id="7"),
        pytest.param((0.9, 0.9, INF, 0.9), 0.36, id="8"),
        pytest.param((2, 2, 2, 2), 1.0, id="11"),
        pytest.param((-0.5, -0.5, -0.5, -0.5), 0.0, id="12"),
        pytest.param((0.11, 0.22, 0.33, 0.44), 0.1155, id="13"),
        pytest.param((0.72, 0.81, 0.63, 0.49), 0.69, id="15"),
        pytest.param((1, 1, 0.08, 0.9), 0.4005, id="16"),
        pytest.param((1, 0.9, 0.3, 0.9), 0.615, id="17"),
        pytest.param((0.9, 0.8, 0.95, 0.85), 0.8775, id="V14-f049-f107"),
    ],
)
def test_published_scores(signals: tuple[float, ...], expected: float) -> None:
    assert value(*signals) == pytest.approx(expected, abs=1e-9)


def test_equal_weights_vector_14() -> None:
    policy = ScorePolicy(weights=Weights(throughput=0.25, compute=0.25, memory=0.25, cpu=0.25))
    assert value(0.8, 0.6, 0.4, 0.2, policy=policy) == pytest.approx(0.25, abs=1e-9)


def test_penalty_zone_v14() -> None:
    assert [penalty(m, POLICY) for m in (0.35, 0.30, 0.25, 0.0)] == pytest.approx(
        [1.0, 0.75, 0.5, 0.5]
    )


@pytest.mark.parametrize(
    ("signals", "anomalies"),
    [
        pytest.param((0.9, 0.9, 0.9, 0.9), (), id="1"),
        pytest.param((NAN, 0.9, 0.9, 0.9), (("throughput", "NaN"),), id="7"),
        pytest.param((0.9, 0.9, INF, 0.9), (("memory", "Inf"),), id="8"),
        pytest.param((0.9, -INF, 0.9, 0.9), (("compute", "Inf"),), id="9"),
        pytest.param(
            (NAN, INF, 0.9, NAN),
            (("throughput", "NaN"), ("compute", "Inf"), ("cpu", "NaN")),
            id="10",
        ),
    ],
)
def test_broken_readings_are_reported(
    signals: tuple[float, ...], anomalies: tuple[tuple[str, str], ...]
) -> None:
    score = compute_score(Signals(*signals), POLICY)
    assert score is not None
    assert score.anomalies == anomalies


def test_signals_are_clamped_not_changed_vector_13() -> None:
    score = compute_score(Signals(0.11, 0.22, 0.33, 0.44), POLICY)
    assert score is not None
    assert score.signals == Signals(0.11, 0.22, 0.33, 0.44)


def test_a_missing_signal_is_left_out_not_counted_as_zero() -> None:
    assert value(0.9, 0.9, None, 0.9) == pytest.approx(0.9)
    assert value(0.5, None, None, 0.9) == pytest.approx((0.4 * 0.5 + 0.15 * 0.9) / 0.55)
    assert compute_score(Signals(), POLICY) is None


@given(st.tuples(reading, reading, reading, reading))
def test_score_is_always_between_zero_and_one_and_repeatable(
    signals: tuple[float | None, ...],
) -> None:
    score = compute_score(Signals(*signals), POLICY)
    assert (score is None) == (set(signals) == {None})
    if score is not None:
        assert 0.0 <= score.value <= 1.0
        assert score == compute_score(Signals(*signals), POLICY)


@pytest.mark.parametrize(
    "weights", [(0.5, 0.5, 0.5, 0.5), (-0.1, 0.35, 0.35, 0.40), (0.0, 0.3, 0.3, 0.4)]
)
def test_wrong_weights_are_refused_vector_18(weights: tuple[float, ...]) -> None:
    t, c, m, p = weights
    with pytest.raises(
        ConfigError, match=r"weight|throughput: .* is out of range; allowed: above 0"
    ):
        Weights(throughput=t, compute=c, memory=m, cpu=p)


@pytest.mark.parametrize(("zone", "floor"), [(0.25, 0.35), (0.35, -0.01), (1.5, 0.25)])
def test_wrong_penalty_zone_is_refused_vector_19(zone: float, floor: float) -> None:
    with pytest.raises(ConfigError, match=r"penalty_floor|degradation_zone: 1.5 is out of range"):
        ScorePolicy(degradation_zone=zone, penalty_floor=floor)


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ((40, 0.9, 0.9, 0.9), "throughput"),
        ((95, 0.3, 0.9, 0.9), "compute"),
        ((95, 0.9, 0.2, 0.9), "memory"),
        ((95, 0.9, 0.9, 0.1), "cpu"),
        ((100, 1.0, 1.0, 1.0), "unknown"),
        ((120, 1.0, 1.0, 1.0), "unknown"),
    ],
)
def test_dominant_signal_vector_69(raw: tuple[float, ...], expected: str) -> None:
    assert dominant_signal(Signals(*raw), Signals(100, 1, 1, 1)) == expected


def test_bug_dominant_signal_compares_like_with_like() -> None:
    """The reference compared a ratio with a raw rate, so throughput nearly always won."""
    assert dominant_signal(Signals(4900, 0.2, 0.9, 0.9), Signals(5000, 0.9, 0.9, 0.9)) == "compute"


def test_bug_dominant_signal_ties_are_not_random() -> None:
    assert {
        dominant_signal(Signals(50, 0.5, 0.5, 0.5), Signals(100, 1, 1, 1)) for _ in range(50)
    } == {"throughput"}
