"""Jobs in which no repeating step is recognised are said to be unjudged."""

import numpy as np

from ingero.contract.verdict import VerdictState
from ingero.core.verdict.events.stepless import OVER_S, SAID_AFTER_S, SteplessJobs

KEYS = {number: (f"n{number // 4}", "llm", number) for number in range(8)}


def _after(seconds: int, timed: tuple[int, ...] = ()) -> SteplessJobs:
    found = SteplessJobs()
    for second in range(seconds):
        found.sent(KEYS, 1000.0 + second)
        found.timed(np.array(timed, np.int64))
        found.advance(KEYS, 1000.0 + second)
    return found


def test_collectives_without_own_times_for_a_minute_have_no_steps() -> None:
    assert not _after(int(SAID_AFTER_S)).jobs
    found = _after(int(SAID_AFTER_S) + 1)
    said = found.jobs["llm"]
    assert said.verdict.state is VerdictState.NOT_SURE
    assert said.verdict.evidence == (
        "no repeating step is recognised in job llm, its 8 ranks cannot be judged"
    )
    assert (said.nodes, found.ranks, said.verdict.since) == ({"n0", "n1"}, 8, 1000.0)


def test_ranks_whose_own_times_come_are_not_among_them() -> None:
    assert not _after(300, tuple(KEYS)).jobs
    some = _after(300, tuple(range(6)))
    assert some.jobs["llm"].verdict.evidence.endswith("2 of its 8 ranks cannot be judged")
    assert (some.jobs["llm"].nodes, some.ranks) == ({"n1"}, 2)


def test_the_episode_stays_the_same_and_ends_when_steps_are_recognised() -> None:
    found = _after(100)
    episode = found.jobs["llm"].verdict.episode
    found.sent(KEYS, 1100.0)
    found.timed(np.array([*KEYS]))
    found.advance(KEYS, 1100.0)
    assert found.jobs["llm"].verdict.state is VerdictState.RESOLVED
    assert (found.jobs["llm"].verdict.episode, found.ranks) == (episode, 0)
    found.advance(KEYS, 1100.0 + OVER_S)
    assert not found.jobs


def test_a_job_that_sends_nothing_any_more_and_freed_members_are_forgotten() -> None:
    found = _after(100)
    found.advance(KEYS, 1200.0)
    assert found.jobs["llm"].verdict.state is VerdictState.RESOLVED
    found = _after(100)
    found.advance({}, 1100.0)
    assert found.ranks == 0
