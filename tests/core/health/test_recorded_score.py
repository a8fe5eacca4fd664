"""The health score of a recording."""

import pytest

from ingero.core.health.recorded_score import MINUTE_NS, recorded_scores


def test_a_minute_is_scored_by_the_formula_of_the_agent() -> None:
    """Weights are 0.40, 0.20 and 0.15 of 0.75: compute is not measured, and missing is not zero."""
    rates = [(minute * MINUTE_NS, rate) for minute, rate in enumerate((100.0, 100.0, 30.0))]
    snapshots = [
        (10, 20.0, 50.0),
        (20, 40.0, 50.0),
        (MINUTE_NS + 5, 10.0, 10.0),
        (2 * MINUTE_NS, 10.0, 10.0),
    ]
    scores = recorded_scores(rates, snapshots)
    assert [minute // MINUTE_NS for minute, _ in scores] == [0, 1, 2]
    first = (0.40 * 1.0 + 0.20 * 0.5 + 0.15 * 0.7) / 0.75
    penalty = 0.75  # of the lowest signal, 0.3
    last = (0.40 * 0.3 + 0.20 * 0.9 + 0.15 * 0.9) / 0.75 * penalty
    assert scores[0][1] == pytest.approx(first)
    assert scores[2][1] == pytest.approx(last)


def test_minutes_without_snapshots_are_scored_by_throughput_alone() -> None:
    assert recorded_scores([(0, 50.0), (MINUTE_NS, 50.0)], []) == [(0, 1.0), (MINUTE_NS, 1.0)]


def test_a_recording_without_calls_has_no_score() -> None:
    assert recorded_scores([], [(0, 1.0, 1.0)]) == []
    assert recorded_scores([(0, 0.0)], []) == []
