"""Jobs come and go: what the engine keeps of them is bounded and does not affect other jobs."""

import numpy as np
from tests.support.verdict_world import START_S, member, noise, run, slowed

from ingero.contract.verdict import Verdict, VerdictState
from ingero.core.verdict.engine import GONE_S, VerdictEngine
from ingero.core.verdict.own_times import make_batch

SHORT_JOBS = 3000
EVERY_S = 60  # a new one


def start_short_job(engine: VerdictEngine, number: int, now_s: float) -> None:
    """Start a job of four ranks with two roles, for one step."""
    ranks = [
        member(r, job=f"short{number}", node=f"s{number}-{r}", role=f"pp{r % 2}") for r in range(4)
    ]
    members = np.array([engine.register(each, now_s) for each in ranks])
    engine.observe(make_batch(members, np.ones(4), np.zeros(4, int)), now_s)


def test_thousands_of_short_jobs_leave_a_bounded_state() -> None:
    engine = VerdictEngine()
    for number in range(SHORT_JOBS):
        start_short_job(engine, number, START_S + number * EVERY_S)
        engine.tick(START_S + number * EVERY_S)
    at_once = int(GONE_S / EVERY_S) + 2
    assert engine.registry.member_count <= 4 * at_once
    assert engine.registry.rows.size <= 4 * at_once
    assert engine.registry.cohorts.size <= 2 * at_once + 1
    assert len(engine.registry.cohort_keys) == engine.registry.cohorts.size
    assert int(engine.registry.rows.job.max()) <= at_once + 1
    assert engine.counters.freed_members == 4 * SHORT_JOBS - engine.registry.member_count
    assert engine.counters.freed_cohorts == 2 * SHORT_JOBS - engine.registry.member_count // 2
    assert len(engine.take_freed()) == engine.counters.freed_members
    assert engine.take_freed() == []


def verdicts_of_a_long_job(others: bool) -> tuple[list[Verdict], tuple[int, int]]:
    """Return the verdicts of a job that runs while rows of other jobs are freed.

    Also returns how many ranks are judged and how many are learning. With `others`, the job uses
    rows that short jobs had before.
    """
    engine = VerdictEngine()
    if others:
        for number in range(200):
            start_short_job(engine, number, START_S - GONE_S - 40 + number)
            engine.tick(START_S - GONE_S - 40 + number)
    found = [verdict for _, verdict in run(slowed(effect=0.1), engine, usd_per_gpu_hour=2.0)]
    found = [verdict for verdict in found if not (verdict.job or "").startswith("short")]
    assert engine.counters.freed_members == 4 * 200 * others
    return found, engine.learning()


def test_a_job_that_goes_on_is_judged_as_if_no_other_had_ended() -> None:
    alone, learning_alone = verdicts_of_a_long_job(others=False)
    among, learning_among = verdicts_of_a_long_job(others=True)
    assert among == alone
    assert [verdict.rank for verdict in among if verdict.state is VerdictState.STRAGGLER] == [3]
    assert learning_among == learning_alone == (8, 0)


def test_a_job_that_comes_back_after_it_was_freed_starts_over() -> None:
    engine = VerdictEngine()
    run(noise(100, 8), engine)
    engine.tick(START_S + 100 + GONE_S)
    assert engine.registry.member_count == 0
    assert engine.learning() == (0, 0)
    assert [verdict for _, verdict in run(noise(100, 8, seed=2), engine)] == []
    assert engine.learning() == (8, 0)


def test_a_split_cohort_is_reported_no_longer_than_its_job_lasts() -> None:
    engine = VerdictEngine()
    own = noise(200, 8)
    own[:, 4:] += 0.3
    run(own, engine)
    assert [verdict.evidence[:12] for verdict in engine.current()] == ["cohort split"]
    for second in range(200, 1000):
        engine.tick(START_S + second)
    assert engine.current() == []
    engine.tick(START_S + 200 + GONE_S)
    assert engine.counters.freed_cohorts == 1
