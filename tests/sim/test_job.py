"""The simulated job: all nodes agree on its steps, and a slow rank is waited for."""

from pathlib import Path

import numpy as np
import pytest

from ingero.sim.job import (
    BUCKETS,
    COMPUTE_S,
    JobFeed,
    SimulatedJob,
    SlowSpell,
    read_job,
    write_job_control,
)


def job(*spells: SlowSpell) -> SimulatedJob:
    return SimulatedJob(16, 1000.0, 3, lambda: list(spells))


def test_two_nodes_see_the_same_steps_whenever_they_look() -> None:
    one, other = job(), job()
    at_once = one.steps_until(1010.0)
    looks_s = [*np.arange(1000.0, 1010.0, 0.7).tolist(), 1010.0]
    in_turns = [step for now_s in looks_s for step in other.steps_until(now_s)]
    assert [number for number, _ in at_once] == list(range(len(at_once)))
    assert [step.ended_s for _, step in in_turns] == [step.ended_s for _, step in at_once]


def test_everybody_waits_for_the_slow_rank_from_the_moment_on() -> None:
    steps = [step for _, step in job(SlowSpell(5, 0.3, 1005.0)).steps_until(1010.0)]
    last = {int(arrived.argmax()) for step in steps[-3:] for arrived in step.arrived_s}
    assert last == {5}
    began = [step.ended_s[0] - step.enqueued_s[0] for step in steps]
    assert began[-1] - began[0] == pytest.approx(0.3 * COMPUTE_S, abs=0.01)


def test_a_rank_that_is_healed_is_waited_for_no_longer() -> None:
    steps = [step for _, step in job(SlowSpell(5, 0.3, 1002.0, 1006.0)).steps_until(1012.0)]
    last = {int(arrived.argmax()) for step in steps[-3:] for arrived in step.arrived_s}
    assert last != {5}


def test_a_feed_gives_the_records_of_its_own_ranks_once(tmp_path: Path) -> None:
    path = tmp_path / "job.control"
    assert read_job(path) == []
    spells = [SlowSpell(1, 0.1, 5.0), SlowSpell(2, 0.2, 5.0, 7.0)]
    write_job_control(path, spells)
    assert read_job(path) == spells
    feed = JobFeed(job(), "n1", range(8, 16), 16, lambda: 1005.0)
    batches = feed.poll()
    assert [batch.rank for batch in batches] == list(range(8, 16))
    records = batches[0].pick(np.arange(len(batches[0].collectives)))
    assert [record.seq for record in records] == list(range(len(records)))
    assert len(records) % len(BUCKETS) == 0
    assert feed.poll() == []
