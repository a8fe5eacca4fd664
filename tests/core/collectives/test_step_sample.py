"""Which steps are sent whole: all ranks choose the same ones."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingero.core.collectives.step_sample import StepSample, Weights, is_chosen

STEPS = np.arange(10_000)


@given(st.floats(0.001, 1.0), st.floats(0.001, 1.0))
def test_a_smaller_share_is_a_subset_of_a_larger_one(one: float, other: float) -> None:
    small, large = is_chosen(STEPS, min(one, other)), is_chosen(STEPS, max(one, other))
    assert not (small & ~large).any()


@given(st.floats(0.01, 0.99))
def test_chosen_steps_are_spread_evenly(share: float) -> None:
    at = np.flatnonzero(is_chosen(STEPS, share))
    assert len(at) == pytest.approx(share * len(STEPS), rel=0.05, abs=4)
    assert np.diff(at).max() <= 3.0 / share + 1


@pytest.mark.parametrize("period", [2, 3, 4, 5, 8, 10, 16, 20, 64])
def test_the_choice_coincides_with_no_period_of_the_job(period: int) -> None:
    at = np.flatnonzero(is_chosen(STEPS, 0.2))
    counts = np.bincount(at % period, minlength=period) * period / len(at)
    assert counts.min() > 0.7
    assert counts.max() < 1.3


@pytest.mark.parametrize(
    ("span_s", "length"), [(0.015, 4), (0.04, 6), (0.05, 20), (1.0, 12), (60.0, 500), (1.0, 2000)]
)
def test_the_rate_stays_within_the_limit_and_a_step_per_second_is_seen(
    span_s: float, length: int
) -> None:
    sample, per_s = StepSample(32.0), 32.0
    for _ in range(20):
        sample.choose(
            np.repeat(np.arange(4), length),
            np.tile(np.arange(length), 4),
            np.zeros(4 * length, np.int64),
            np.full(4, span_s),
        )
    steps = np.repeat(np.arange(4000), length)
    same = np.zeros(len(steps), np.int64)
    sent = sample.choose(steps, np.tile(np.arange(length), 4000), same, np.full(4000, span_s))
    assert sent.sum() / (4000 * span_s) <= per_s * 1.1
    seen = len(np.unique(steps[sent])) / (4000 * span_s)
    assert seen >= 0.8 * min(1.0, 1.0 / span_s)


def test_the_share_follows_a_changed_pace_but_not_its_noise() -> None:
    sample, chance = StepSample(32.0), np.random.default_rng(5)
    shares = set()
    for _ in range(200):
        span_s = 0.04 * chance.lognormal(0.0, 0.05, 25)
        sample.choose(
            np.repeat(np.arange(25), 6), np.tile(np.arange(6), 25), np.zeros(150, int), span_s
        )
        shares.add(sample.steps)
    assert len(shares) <= 2
    for _ in range(40):
        sample.choose(
            np.repeat(np.arange(2), 6), np.tile(np.arange(6), 2), np.zeros(12, int), np.full(2, 0.5)
        )
    assert sample.steps == 1.0


def test_steps_without_a_number_are_not_chosen() -> None:
    assert not is_chosen(np.array([-1, -1]), 0.5).any()


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=80), st.data())
def test_f089_weights_add_up_to_all_collectives_of_each_kind(
    seen: list[tuple[int, bool]], data: st.DataObject
) -> None:
    """Whatever is chosen: what is sent stands for all that was seen until the kind came last."""
    weights, stood_for = Weights(), dict.fromkeys(range(6), 0.0)
    counted: dict[int, int] = dict.fromkeys(range(6), 0)
    at = 0
    while at < len(seen):
        size = data.draw(st.integers(1, len(seen) - at))
        part, at = seen[at : at + size], at + size
        weights.seen(np.array([kind for kind, _ in part]))
        for kind, _ in part:
            counted[kind] += 1
        sent = np.array([kind for kind, is_sent in part if is_sent], np.int64)
        for kind, weight in zip(sent.tolist(), weights.of(sent).tolist(), strict=True):
            assert weight >= 1.0
            stood_for[kind] += weight
        for kind in set(sent.tolist()):
            assert stood_for[kind] == pytest.approx(counted[kind])


def test_f089_no_kind_of_collective_is_left_out_where_places_are_sampled() -> None:
    """One large message among a thousand small ones is the bytes of the step."""
    length = 1000
    sample, steps = StepSample(32.0), np.repeat(np.arange(60), length)
    place, kind = np.tile(np.arange(length), 60), np.zeros(60 * length, np.int64)
    kind[place == 617] = 1
    sent = sample.choose(steps, place, kind, np.full(60, 1.0))
    assert set(place[sent & (kind == 1)]) == {617}
    assert sent.sum() <= 60 * 40


def test_beyond_the_limit_sizes_of_one_operation_are_counted_together() -> None:
    weights = Weights()
    codes = weights.codes(("AllReduce",), np.zeros(400, np.int64), np.arange(400))
    assert len(np.unique(codes)) == 257


@pytest.mark.parametrize(("length", "places"), [(64, 1.0), (65, 0.42)])
def test_steps_are_sent_whole_down_to_one_in_two_seconds(length: int, places: float) -> None:
    sample, step = StepSample(32.0), np.repeat(np.arange(4), length)
    place = np.tile(np.arange(length), 4)
    sample.choose(step, place, place * 0, np.full(4, 0.1))
    assert sample.places == pytest.approx(places, abs=0.01)
    assert sample.steps * 10 == pytest.approx(0.44 if places == 1 else 0.88, abs=0.01)
