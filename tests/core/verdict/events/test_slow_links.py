"""Slow links: collectives that take longer for the rank that waits least, too."""

import numpy as np
import pytest
from tests.support.member_tables import cohorts_of, linked

from ingero.core.verdict.events import links
from ingero.core.verdict.own_times import make_batch


@pytest.mark.parametrize(
    ("change", "is_slow"),
    [
        ({"transfer": 0.129}, False),
        ({"transfer": 0.135}, True),  # 30 % more, and more than 3 % of the step
        ({"transfer": 0.135, "step_s": 1.2}, False),
        ({"transfer": 0.2, "waiting": 0.14}, True),
        ({"transfer": 0.2, "waiting": 0.16}, False),  # waiting grew by more than half of that
        ({"transfer": 0.2, "seconds": 30}, False),  # it must last for 30 s
        ({"transfer": 0.2, "seconds": 32}, True),
        ({"transfer": 0.2, "seconds": 400}, False),  # what lasts is the new normal
    ],
)
def test_links_are_slow_when_even_the_rank_that_waits_least_takes_longer(
    change: dict[str, float], is_slow: bool
) -> None:
    assert linked(**change) == is_slow  # type: ignore[arg-type]


def test_slow_links_are_said_once_per_job() -> None:
    cohorts = cohorts_of(1, 1)
    cohorts.transfer_s[:2], cohorts.waiting_s[:2] = 0.1, 0.1
    links.judge_links(cohorts, np.ones(2), 1000.0)
    cohorts.transfer_s[:2] = [0.2, 0.3]
    for second in range(40):
        found = links.judge_links(cohorts, np.ones(2), 1010.0 + second)
    assert found.tolist() == [True, False]
    assert links.transfer_of_job(cohorts, 1) == (0.2, pytest.approx(0.1, rel=0.01))


def test_time_inside_collectives_is_known_where_the_gpu_is_timed() -> None:
    batch = make_batch(
        np.arange(4), np.array([0.6, 0.6, 0.6, 2.0]), np.array([5, 5, -1, 5]),
        span_s=np.ones(4), idle_s=np.array([0.0, np.nan, 0.0, 0.0]),
    )  # fmt: skip
    inside = links.time_inside(batch)
    assert inside[0] == pytest.approx(0.4)
    assert np.isnan(inside[[1, 2]]).all()
    assert inside[3] == 0.0


def test_transfer_is_the_least_time_inside_and_is_followed_slowly() -> None:
    cohorts = cohorts_of(1, 1)
    inside = np.array([0.2, 0.5, np.nan, np.nan])
    links.follow_transfer(cohorts, np.array([0, 1]), np.array([0, 3]), inside)
    assert (cohorts.transfer_s[0], cohorts.waiting_s[0]) == (0.2, pytest.approx(0.15))
    assert np.isnan(cohorts.transfer_s[1])
    links.follow_transfer(cohorts, np.array([0]), np.array([0]), np.array([1.2, 1.2]))
    assert cohorts.transfer_s[0] == pytest.approx(0.2 + 0.02)


def test_what_changes_little_is_followed_slowly() -> None:
    cohorts = cohorts_of(1)
    cohorts.transfer_s[0], cohorts.baseline_transfer_s[0] = 1.1, 1.0
    cohorts.waiting_s[0], cohorts.baseline_waiting_s[0] = 3.0, 2.0
    links._follow_baselines(cohorts, 1000.0)
    assert cohorts.baseline_transfer_s[0] == pytest.approx(1.0 + 0.1 * links.BASELINE_SMOOTH)
    assert cohorts.baseline_waiting_s[0] == pytest.approx(2.0 + 1.0 * links.BASELINE_SMOOTH)
