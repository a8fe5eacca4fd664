"""Small parts of blame, each by itself: sums, references, shares, orders and what is enough."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.support.link_rows import call, columns, links, roles
from tests.support.quiet_job import fixer, quiet_job

from ingero.core.blame import steps as by_steps
from ingero.core.blame import suspects
from ingero.core.blame.answer import Answer
from ingero.core.blame.heatmap import _colour
from ingero.core.blame.record_fixes import _common_rows
from ingero.core.blame.record_steps import _sums, _typical
from ingero.core.blame.recorded import blamed, spells
from ingero.core.blame.recorded.loss import CALM_STEPS, _is_enough
from ingero.core.blame.recorded.spells import Spell
from ingero.core.blame.step_trace import BACKWARD, COMMUNICATION, FORWARD
from ingero.core.blame.suspects import Suspect, WorkerSteps
from ingero.core.blame.whatif import _sequence


def suspect(worker: int = 0, excess_s: float = 0.4, stalls: int = 0) -> Suspect:
    return Suspect(worker, 0.1, 0.01, excess_s, 0.9, 1.0, None, tuple(range(stalls)), 7)


def test_an_answer_about_nothing_counts_nothing() -> None:
    answer = Answer(source="records")
    assert (answer.gpus, answer.steps, answer.loss_s, answer.culprits) == (0, 0, None, ())


# --- recorded steps
def test_sums_leave_out_what_is_in_no_column_and_do_not_hide_the_unknown() -> None:
    column = np.array([0, 0, 1, -1, 2, 2])
    found = _sums(np.array([1.0, 2.0, 3.0, 50.0, 1.0, np.nan]), column, 4)
    assert found.tolist()[:2] == [3.0, 3.0]
    assert np.isnan(found[2])
    assert found[3] == 0.0


def test_the_typical_step_is_a_mean_of_known_ones() -> None:
    assert _typical(np.array([1.0, np.nan, 1.2, 1.1])) == pytest.approx(1.1, abs=0.05)
    assert _typical(np.array([np.nan, np.nan])) == 0.0


def test_common_rows_reach_from_the_first_to_the_last_step_of_all_ranks() -> None:
    own = np.ones((2, 5))
    own[0, 0] = own[1, 4] = np.nan
    workers = WorkerSteps(own, np.ones(5), np.zeros(2, int), (0, 1, 2, 3, 4))
    measured: Any = SimpleNamespace(workers=workers, row_step=np.array([0, 1, 2, 3, 4, -1]))
    rows: Any = [None] * 6
    assert _common_rows(rows, measured, slice(0, 5)).tolist() == [1, 2, 3]
    assert _common_rows(rows, measured, slice(2, 5)).tolist() == [2, 3]
    own[:] = np.nan
    assert _common_rows(rows, measured, slice(0, 5)).tolist() == [0, 1, 2, 3, 4]
    own[:] = 1.0
    assert _common_rows(rows, measured, slice(0, 5)).tolist() == [0, 1, 2, 3, 4, 5]


def test_without_peers_the_pace_of_a_rank_is_unknown() -> None:
    found = fixer(quiet_job())
    rows, pace = found._pace(0, set(range(8)))
    assert len(rows) == len(pace) > 0
    assert np.isnan(pace).all()
    rows, pace = found._pace(0, {0})
    assert np.isfinite(pace).all()


# --- losses of spells
def spell(begin: int, end: int, **given: Any) -> Spell:
    return Spell(suspect(**given), begin, end)


def test_the_loss_of_a_recording_is_per_recorded_step() -> None:
    def one(lost_s: float, length: int) -> Any:
        return SimpleNamespace(loss=SimpleNamespace(lost_s=lost_s), spell=spell(0, length))

    assert blamed.total_loss([one(0.5, 4), one(0.25, 8)], 10) == pytest.approx(0.4)
    assert blamed.total_loss([one(0.5, 1)], 1) == 0.5
    assert blamed.total_loss([], 0) == 0


def test_where_everybody_is_suspected_nobody_shows_what_is_usual() -> None:
    late: Any = SimpleNamespace(start_s=np.zeros((2, 10)))
    assert blamed._usual_charge(late, spell(0, 10), None, {0, 1}) == 0.0  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("steps", "each_s", "enough"),
    [(CALM_STEPS, 0.001, True), (CALM_STEPS - 1, 0.001, False), (16, 2.5, True), (16, 2.4, False),
     (15, 100.0, False)],
)  # fmt: skip
def test_calm_steps_are_enough_when_they_are_many_or_long(
    steps: int, each_s: float, enough: bool
) -> None:
    assert _is_enough(np.full(steps, each_s)) == enough


def test_a_worker_is_not_part_of_what_it_is_compared_with() -> None:
    workers = WorkerSteps(
        np.array([[1.0, 1.0], [np.e, np.e], [5.0, 5.0]]), np.ones(2), np.array([0, 0, 1]), (0, 1)
    )
    found = spells._excess(workers)
    assert found[:2].tolist() == [[-1.0, -1.0], [1.0, 1.0]]
    assert np.isnan(found[2]).all(), "nobody else has its role"


def test_a_worker_that_is_never_slow_has_no_heavy_stretch() -> None:
    assert spells._heaviest(np.full(6, -0.1), 0.0075) == (0, 0)
    assert spells._heaviest(np.full(6, np.nan), 0.0075) == (0, 0)
    assert spells._heaviest(np.array([-0.1, 0.5, 0.5, np.nan, 0.5, -0.1]), 0.0075) == (1, 5)


# --- suspects
def test_levels_are_relative_to_the_lower_middle_of_their_role() -> None:
    level = np.array([0.0, 1.0, 2.0, 3.0, 4.0, 10.0, 20.0, np.nan])
    cohort = np.array([0, 0, 0, 0, 0, 1, 1, 1])
    found = suspects._recentred(level, cohort)
    assert found[:7].tolist() == [-2.0, -1.0, 0.0, 1.0, 2.0, 0.0, 10.0]
    assert np.isnan(found[7])


def test_only_usable_members_of_a_role_are_its_reference() -> None:
    logs = np.array([[1.0], [9.0], [5.0], [7.0]])
    cohort, usable = np.array([0, 0, 1, 1]), np.array([True, False, False, False])
    found = suspects._cohort_reference(logs, cohort, usable, low=False)
    assert found.ravel().tolist() == [1.0, 1.0, 6.0, 6.0], "all where none is usable"
    low = suspects._cohort_reference(logs, cohort, usable, low=True)
    assert low.ravel().tolist() == [1.0, 1.0, 5.0, 5.0]


def test_two_workers_that_take_turns_rotate_evenly() -> None:
    residual = np.array([[0.1, 0.0, 0.1, 0.0], [0.0, 0.1, 0.0, 0.1]])
    workers = WorkerSteps(np.ones((2, 4)), np.full(4, 2.0), np.zeros(2, int), (0, 1, 2, 3))
    loss, evenly = suspects._rotation(np.ones((2, 4)), workers, residual, set())
    assert loss == pytest.approx(-np.expm1(-0.1) / 2)
    assert evenly == pytest.approx(1.0)
    assert suspects._rotation(np.ones((2, 4)), workers, residual, {1}) == (0.0, 0.0)


# --- step traces
def test_the_most_waited_communication_is_that_with_most_time_beyond_its_transfer() -> None:
    long, short = sorted(COMMUNICATION)[:2]
    nodes = [SimpleNamespace(optype=long), SimpleNamespace(optype=short),
             SimpleNamespace(optype=FORWARD)]  # fmt: skip
    trace = SimpleNamespace(nodes=nodes, duration_s=np.array([[10.0], [2.0], [99.0]]))
    job: Any = SimpleNamespace(trace=trace, busy_s=np.array([[9.9], [1.0], [0.0]]))
    assert by_steps._most_waited(job) == short
    job.busy_s = trace.duration_s
    assert by_steps._most_waited(job) is None


@pytest.mark.parametrize(
    ("forward", "backward", "expected"),
    [
        ([1.0, 2.0, 3.0], [2.0, 4.0, 6.0], 1.0),
        ([1.0, 1.0, 1.0], [2.0, 4.0, 6.0], 0.0),
        ([1.0, 2.0, 3.0], [2.0, 2.0, 2.0], 0.0),
        ([], [], 0.0),
    ],
)
def test_what_does_not_vary_is_not_correlated(
    forward: list[float], backward: list[float], expected: float
) -> None:
    count = len(forward)
    rows = {FORWARD: list(range(count)), BACKWARD: list(range(count, 2 * count))}

    def nodes_where(kinds: frozenset[str], stage: int) -> list[int]:
        return rows[next(iter(kinds))]

    job: Any = SimpleNamespace(
        trace=SimpleNamespace(stages=1, nodes_where=nodes_where),
        busy_s=np.array([*forward, *backward]),
    )
    assert by_steps._forward_backward_correlation(job) == pytest.approx(expected)


# --- replays, links, roles, colours
def test_a_receive_waits_for_the_first_row_as_for_any_other() -> None:
    """Rows 0 and 2 meet in a collective; row 1 needs row 0, and comes up before both have met."""
    group, who = np.array([0, 1, 0]), np.array([0, 1, 2], np.int32)
    awaits = np.array([-1, 0, -1])
    assert _sequence(group, who, awaits) == ((0, 2), (1,))


def test_communicators_of_one_rank_are_no_links() -> None:
    rows = [row for step in range(4) for comm, slow in ((1, 100), (2, 100), (3, 900))
            for row in call((comm,), comm, step, slow)]  # fmt: skip
    assert links(columns(rows)) == []
    rows = [row for step in range(4) for comm, slow in ((1, 100), (2, 100), (3, 900))
            for row in call((2 * comm, 2 * comm + 1), comm, step, slow)]  # fmt: skip
    assert [link.members for link in links(columns(rows))] == [(6, 7)]


@pytest.mark.parametrize(("sizes", "role"), [(64, 1), (65, 0)])
def test_more_than_sixty_four_sizes_do_not_describe_a_role(sizes: int, role: int) -> None:
    rows = []
    for seq in range(sizes):
        rows += [r for r in call((0, 1), 1, seq, 100, size=5000 + seq) if r["who"] == 0]
        rows += [r for r in call((0, 1), 1, seq, 100, size=9000 + seq) if r["who"] == 1]
    assert roles(rows, 2) == [0, role]


def test_colours_begin_at_the_usual_time() -> None:
    usual, slow, fast = (_colour(value, 0.5) for value in (1.0, 1.2, 0.9))
    assert len({usual, slow, fast, _colour(np.nan, 0.5)}) == 4
    assert _colour(1.5, 0.5) == _colour(9.0, 0.5), "the ramp ends"
