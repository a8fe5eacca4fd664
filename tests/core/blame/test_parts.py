"""Calls that are all alike: how many of them a step has follows from the time between them."""

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.job_shapes import Shape, ddp
from tests.support.more_shapes import draw_more
from tests.support.other_shapes import fused
from tests.support.random_jobs import DrawnJob
from tests.support.simulated_job import Fault, Noise, simulate

from ingero.core.blame.record_steps import measure_steps
from ingero.core.blame.recorded.parts import find_parts
from ingero.core.blame.records import blame_records

Floats = NDArray[np.float64]
SECONDS = np.zeros(240)


def lengths(*parts: float, scatter: float = 0.01, seed: int = 3) -> Floats:
    """Return 240 lengths that repeat."""
    drawn = np.random.default_rng(seed).standard_normal(240)
    return np.resize(parts, 240) * np.exp(scatter * drawn)


@pytest.mark.parametrize(
    ("length_s", "parts"),
    [
        (lengths(1.0), 1), (lengths(1.0, 1.3), 2), (lengths(1.0, 1.0, 1.15), 3),
        (lengths(1.0, 1.08), 1),  # less than a tenth: what hosts do now and then
        (lengths(5.0, 1.0, 3.0, 1.0), 4), (lengths(1.0, 1.3, 1.0, 1.31), 2),
        (lengths(*[1.0] * 3, 1.4), 4), (lengths(1.0, 1.3, scatter=0.8), 1),
        (lengths(*[1.0] * 4, *[2.0] * 5), 9), (lengths(*[1.0] * 8, *[2.0] * 7, 2.4), 16),
        (lengths(*[1.0] * 9, *[2.0] * 9), 1),
    ],
)  # fmt: skip
def test_lengths_that_repeat_are_parts_of_a_step(length_s: Floats, parts: int) -> None:
    assert find_parts(length_s, SECONDS) == parts


@pytest.mark.parametrize("longer", [1.15, 1.3, 1.6, 4.0])
@pytest.mark.parametrize("every", [5, 6, 7, 8, 10, 13, 16])
def test_what_a_job_does_every_few_steps_is_no_part_of_them(every: int, longer: float) -> None:
    """It logs, saves or evaluates; what was prepared is gone in the step after it."""
    assert find_parts(lengths(*[1.0] * (every - 1), longer), SECONDS) == 1
    assert find_parts(lengths(*[1.0] * (every - 2), longer, 1.12), SECONDS) == 1


@pytest.mark.parametrize("longer", [0.3, 0.6, 3.0])
@pytest.mark.parametrize("every", [10, 12, 14, 16])
def test_nor_is_what_it_does_every_few_steps_of_two_parts(every: int, longer: float) -> None:
    event = np.resize([*[0.0] * (every - 1), longer], 240)
    assert find_parts(lengths(1.0, 1.3) + event, SECONDS) == 2


@pytest.mark.parametrize("seed", range(40))
def test_chance_has_no_rhythm(seed: int) -> None:
    for calls in (40, 70, 240):
        assert find_parts(lengths(1.0, scatter=0.3, seed=seed)[:calls], SECONDS[:calls]) == 1


def test_what_one_rank_adds_is_no_rhythm() -> None:
    stalls = np.resize([0.0, 0.0, 0.0, 0.5], 240)
    assert find_parts(1.0 + stalls, SECONDS) == 4
    assert find_parts(1.0 + stalls, stalls) == 1
    both = lengths(1.0, 1.3) + np.resize([0.5, 0.0], 240)
    assert find_parts(both, np.where(np.arange(240) > 140, np.resize([0.5, 0.0], 240), 0)) == 2


def test_times_that_are_unknown_or_zero_show_nothing() -> None:
    assert find_parts(np.full(240, np.nan), SECONDS) == 1
    assert find_parts(SECONDS, SECONDS) == 1
    assert find_parts(lengths(1.0, 1.3)[:17], SECONDS[:17]) == 1
    assert find_parts(lengths(1.0, 1.3)[:18], SECONDS[:18]) == 2


def test_steps_of_one_call_stay_apart_where_every_tenth_takes_longer_on_all_ranks() -> None:
    faults = [Fault(rank, host_s=0.03, every=10) for rank in range(8)]
    job = simulate(ddp(8, 0.1, buckets=1), 301, faults, noise=Noise())
    answer = blame_records(job.columns, True, "test")
    assert answer.step_time_s == pytest.approx(float(job.step_s[:, 1:].mean()), rel=0.01)
    assert answer.culprits == ()


TWO = draw_more("two calls", 9531, 0.1)


def plain(shape: Shape) -> DrawnJob:
    return DrawnJob("plain", shape, Noise(), 0.04)


@pytest.mark.parametrize(
    ("fault", "cause"),
    [(Fault(1, gpu=0.1, first=121), "compute"), (Fault(2, host_s=0.15, every=7), "host")],
)
@pytest.mark.parametrize("lost", [0.0, 0.001])
def test_two_equal_calls_are_one_step(fault: Fault, cause: str, lost: float) -> None:
    """None of both overlaps compute; a few records may be lost."""
    job = simulate(TWO.shape, 241, [fault], noise=TWO.noise, flag_every=50)
    kept = np.random.default_rng(7).random(len(job.columns)) >= lost
    answer = blame_records(job.columns.take(kept), True, "test")
    assert answer.step_time_s == pytest.approx(float(job.step_s[:, 1:].mean()), rel=0.01)
    assert [(c.rank, str(c.cause)) for c in answer.culprits] == [(fault.rank, cause)]
    assert answer.culprits[0].period == (7 if fault.every == 7 else None)


@pytest.mark.parametrize("drawn", [plain(fused()), plain(ddp(one_size=True)), plain(ddp())])
@pytest.mark.parametrize("every", [2, 7, 1000])
def test_flags_and_stalls_do_not_lengthen_a_step(drawn: DrawnJob, every: int) -> None:
    for faults in ([], [Fault(3, host_s=0.06, every=5)]):
        job = simulate(drawn.shape, 161, faults, noise=drawn.noise, flag_every=every)
        answer = blame_records(job.columns, True, "test")
        assert answer.step_time_s == pytest.approx(float(job.step_s[:, 1:].mean()), rel=0.01)
        assert [c.rank for c in answer.culprits] == [3] * len(faults)


def test_the_places_of_a_step_are_those_of_its_parts_one_after_the_other() -> None:
    job = simulate(TWO.shape, 61, noise=TWO.noise, flag_every=0)
    measured = measure_steps(job.columns, True)
    nth = job.columns.seq
    assert set(measured.row_place[nth > 1].tolist()) == {0, 1}
    inside = measured.row_step >= 0
    ends = replace(job.columns).end_ns
    for rank in range(len(measured.ranks)):
        mine = np.flatnonzero(inside & (job.columns.who == rank))
        mine = mine[np.argsort(ends[mine])]
        order = 2 * measured.row_step[mine] + measured.row_place[mine]
        assert (np.diff(order) == 1).all()
