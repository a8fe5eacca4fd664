"""What is said about a loss: measured, at most, or none; from figures that are given."""

import math
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.support.step_tables import with_steps
from tests.support.verdict_tables import CALM, PEERS, POLICY, world

from ingero.core.verdict import loss
from ingero.core.verdict.events.describe import _loss_of_cohort, _loss_since_high
from ingero.core.verdict.loss import Change, Loss, _explained_by_work, change_of_step, measure_loss
from ingero.core.verdict.table import FAST, STALL


@pytest.fixture
def judged(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what is said of a change, where own times allow `most` and `part` is a member's."""

    def judge(
        share: float, error: float, *, most: float = 0.2, part: float = 1.0,
        was_late: bool | None = None, slow_s: float = 1.0, channel: int = FAST,
    ) -> Loss:  # fmt: skip
        change = None if math.isnan(share) else Change(share, error, 1.0, slow_s, 1 - 1 / slow_s)
        monkeypatch.setattr(loss, "change_of_step", lambda *_: change)
        monkeypatch.setattr(loss, "most_lost", lambda *_, **__: most)
        monkeypatch.setattr(loss, "part_of_loss", lambda *_: part)
        registry = world()
        registry.rows.channel[0] = channel
        return measure_loss(
            registry, 0, PEERS, CALM, POLICY, excess=0.1, period=None, was_late=was_late
        )

    return judge


@pytest.mark.parametrize(("part", "share", "error"), [(1.0, 0.10, 0.02), (0.5, 0.05, 0.01)])
def test_a_clear_change_is_the_loss_with_two_errors(
    judged: Any, part: float, share: float, error: float
) -> None:
    said = judged(0.10, 0.01, part=part)
    assert (said.share, said.error, said.is_late) == (pytest.approx(share), error, False)
    assert (said.calm_s, said.slow_s, said.at_most) == (1.0, 1.0, False)


@pytest.mark.parametrize(
    ("share", "error", "is_late"),
    [
        (0.015, 0.001, False), (0.0149, 0.001, True),  # of a step: less is no reason to act
        (0.02, 0.02, False), (0.0199, 0.02, True),  # one error
    ],
)  # fmt: skip
def test_a_change_below_the_bar_is_late_where_own_times_promised_more(
    judged: Any, share: float, error: float, is_late: bool
) -> None:
    assert judged(share, error).is_late == is_late


@pytest.mark.parametrize(
    ("share", "was_late", "is_late"),
    [(0.029, True, True), (0.030, True, False), (0.0075, False, False), (0.0074, False, True)],
)
def test_what_was_said_stays_until_the_change_is_twice_as_clear(
    judged: Any, share: float, was_late: bool, is_late: bool
) -> None:
    assert judged(share, 0.001, was_late=was_late).is_late == is_late


def test_who_was_late_stays_late_however_uncertain_the_steps_are(judged: Any) -> None:
    said = judged(0.02, 0.5, was_late=True)
    assert (said.is_late, said.error) == (True, 1.0)


@pytest.mark.parametrize(
    ("most", "part", "is_late"),
    [
        (0.081, 1.0, True), (0.079, 1.0, False),  # 0.02 and two errors of 0.03 are 0.08
        (0.041, 0.5, True), (0.039, 0.5, False),  # its part of a joint loss
        (0.0081, 0.05, True), (0.0079, 0.05, False),  # a part counts as a tenth at least
    ],
)  # fmt: skip
def test_steps_that_rule_out_what_own_times_allow_make_it_late(
    judged: Any, most: float, part: float, is_late: bool
) -> None:
    assert judged(0.02, 0.03, most=most, part=part).is_late == is_late


@pytest.mark.parametrize(
    ("share", "most", "is_late"),
    [
        (0.01, 0.061, True), (0.01, 0.059, False),  # no change was seen: one error of 0.05
        (0.016, 0.061, False),  # one was, if not for sure: two errors
        (0.01, 0.0299, True), (0.01, 0.0301, False),  # so little is not worth an alarm
    ],
)  # fmt: skip
def test_nobody_is_named_for_at_most_a_little_where_the_steps_did_not_change(
    judged: Any, share: float, most: float, is_late: bool
) -> None:
    assert judged(share, 0.05, most=most).is_late == is_late


@pytest.mark.parametrize(
    ("slow_s", "part", "most", "upper"),
    [
        (1.0, 0.5, 0.03, (0.02 + 1.645 * 0.03) * 0.5),  # 95 % of what the steps allow
        (1.25, 0.5, 0.03, 0.2 * 0.5),  # the plain change of the steps
        (1.0, 1.0, 0.075, 0.075),  # what own times allow
    ],
)
def test_otherwise_the_largest_of_three_bounds_is_said(
    judged: Any, slow_s: float, part: float, most: float, upper: float
) -> None:
    said = judged(0.02, 0.03, slow_s=slow_s, part=part, most=most)
    assert (said.share, said.at_most, said.is_late) == (pytest.approx(upper), True, False)


def test_no_bound_is_more_than_everything_and_no_loss_less_than_nothing(judged: Any) -> None:
    assert judged(0.0, 2.0).share == 1.0
    assert judged(-0.05, 0.001).share == 0.0


@pytest.mark.parametrize(("most", "is_late"), [(0.0009, True), (0.001, False)])
def test_without_steps_only_own_times_speak(judged: Any, most: float, is_late: bool) -> None:
    said = judged(math.nan, 0.0, most=most)
    assert (said.share, said.error, said.is_late, said.calm_s) == (most, None, is_late, None)


def test_a_member_that_no_own_time_shows_is_late_unless_it_stalls(judged: Any) -> None:
    hidden = judged(0.10, 0.001, most=0.0005)
    assert (hidden.is_late, hidden.share, hidden.error) == (True, 0.0005, None)
    stalls = judged(0.10, 0.001, most=0.0005, channel=STALL)
    assert (stalls.is_late, stalls.share) == (False, pytest.approx(0.10))


@pytest.mark.parametrize(("count", "blocks"), [(3, 1.0), (5, 1.0), (20, 4.0)])
def test_the_error_of_a_change_shrinks_with_whole_blocks(count: int, blocks: float) -> None:
    change = change_of_step(with_steps(np.full(count, math.log(1.25)), FAST), 0, CALM)
    assert change is not None
    assert (change.share, change.slow_s) == (pytest.approx(0.2), pytest.approx(1.25))
    spread = CALM.noise / math.sqrt(blocks)
    assert change.error == pytest.approx(0.8 * math.hypot(CALM.error, spread))


def cohort_that_slowed(calm: int, of: int = 100) -> Any:
    registry = world()
    cohorts = registry.cohorts
    cohorts.step_log[1, :of] = math.log(1.25)
    cohorts.step_log[1, :calm] = 0.0
    cohorts.step_is_calm[1, :of] = 1.0
    cohorts.step_samples[1], cohorts.sample_s[1] = of, 1.0
    return registry


def test_the_loss_of_a_cohort_is_measured_from_before_it_was_seen_to_be_slow() -> None:
    """Its level was high for 60 s and smoothed for 15: the 25 samples before are calm."""
    registry = cohort_that_slowed(calm=25)
    registry.cohorts.event_since_s[1], registry.cohorts.high_since_s[1] = 500.0, 440.0
    assert _loss_since_high(registry, 1) == (pytest.approx(0.2), True)
    registry.cohorts.sample_s[1] = 2.0  # half as many samples: slow ones are among the calm
    assert _loss_since_high(registry, 1) == (pytest.approx(0.0, abs=1e-6), True)


def test_the_loss_of_a_cohort_is_unknown_without_calm_or_without_slow_steps() -> None:
    registry = cohort_that_slowed(calm=25)
    assert _loss_of_cohort(registry, 1, 25) == (pytest.approx(0.2), True)
    assert _loss_of_cohort(registry, 1, 100) == (None, False)
    assert _loss_of_cohort(registry, 1, 19) == (None, False)
    faster = cohort_that_slowed(calm=25)
    faster.cohorts.step_log[1, 25:] = -0.5
    assert _loss_of_cohort(faster, 1, 25) == (0.0, True)


def test_a_jump_of_own_times_is_work_as_far_as_calm_jumps_are_as_large() -> None:
    """Work alone spreads by 1 %, with a reaction of 2 % by their root of squares."""
    why: Any = SimpleNamespace(slope=1.0, jump=0.02, usual_jump=0.01)
    alone, both = (math.exp(-((0.02 / s) ** 2) / 2) / s for s in (0.01, math.hypot(0.01, 0.02)))
    only_work = alone / (alone + both)
    work = 0.02 * (only_work + (1 - only_work) * 0.2)  # a fifth of the variance of both is work
    expected, unsure = _explained_by_work(why, 0.05, 0.02)
    assert expected == pytest.approx(0.05 - 0.02 + work)
    spread = only_work * (0.02 * 0.8) ** 2 + 0.2 * 0.02**2
    assert unsure == pytest.approx(math.sqrt((1 - only_work) * spread))
