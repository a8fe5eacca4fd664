"""Small rules of recorded jobs: what a fix saves, which rows count, and whose role is whose."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.support.blame_tables import NOT_KNOWN, blamed, lateness, steps_of, suspect
from tests.support.link_rows import NAMES, Row, call, columns

from ingero.core.blame.record_fixes import Fixer, pace_of
from ingero.core.blame.recorded.lateness import _placed_rows, measure_lateness
from ingero.core.blame.recorded.link_spells import find_link_spell
from ingero.core.blame.recorded.spells import _core, _levels, _stands_out
from ingero.core.blame.records import _most
from ingero.core.blame.roles import find_roles
from ingero.core.collectives.columns import Recorder, from_columns

STEPS = 240


def by_step(own: Any, *workers: int) -> float:
    measured = SimpleNamespace(workers=steps_of(own, [1.0] * len(own)))
    given: Any = SimpleNamespace(_measured=measured, _steps=slice(None))
    return Fixer._by_step(given, [suspect(worker) for worker in workers])


def test_where_entries_are_unknown_the_largest_own_time_paces_a_step() -> None:
    own = [[3.0, 5.0], [2.0, 2.0], [1.0, 2.0]]
    assert by_step(own, 0) == pytest.approx((1.0 + 3.0) / 2)
    assert by_step(own, 0, 1) == pytest.approx((2.0 + 3.0) / 2)
    assert by_step(own, 2) == 0.0
    assert by_step([[NOT_KNOWN, 5.0], [NOT_KNOWN, 2.0]], 0) == pytest.approx(3.0)
    assert by_step([[NOT_KNOWN], [NOT_KNOWN]], 0) == 0.0


def test_the_pace_of_a_worker_is_that_of_its_role() -> None:
    workers = steps_of([[9.0], [2.0], [4.0], [50.0]], [1.0], [0, 0, 0, 1])
    assert pace_of(workers, 0, {0}).tolist() == [3.0]
    assert pace_of(workers, 0, set()).tolist() == [4.0]
    assert np.isnan(pace_of(workers, 3, {3})).all()


def test_the_largest_charge_of_all() -> None:
    assert _most([]) == 0.0
    assert _most([blamed(0, 1, 0.2), blamed(0, 1, 0.5)]) == 0.5


def test_rows_have_a_step_and_a_place() -> None:
    measured: Any = SimpleNamespace(
        row_step=np.array([0, -1, 0, 3]), row_place=np.array([0, 0, -1, 2])
    )
    assert _placed_rows(measured).tolist() == [0, 3]


def test_a_job_with_sends_is_left_to_own_time() -> None:
    """Also where somebody sends to the first rank."""
    measured: Any = SimpleNamespace(row_step=np.array([0]), row_place=np.array([0]))
    for peer in (0, 1):
        given: Any = SimpleNamespace(peer=np.array([peer]))
        assert measure_lateness(given, measured, lateness([[[1.0]], [[0.0]]])) is None


def test_the_costliest_link_decides_when_links_are_slow() -> None:
    rows: list[Row] = []
    steps: list[int] = []
    for comm in range(5):
        for step in range(STEPS):
            is_worst, is_other = comm == 2 and 60 <= step < 180, comm == 0 and step < 30
            rows += call((2 * comm, 2 * comm + 1), 7 + comm, step,
                         500.0 if is_worst else 250.0 if is_other else 100.0)  # fmt: skip
            steps += [step, step]
    found = find_link_spell(columns(rows), np.array(steps), np.full(STEPS, 0.010), 0.010)
    assert found is not None
    assert (found.begin, found.end, found.links[0].comm) == (60, 180, 9)


def test_the_core_of_a_stretch_is_half_way_from_the_steps_outside() -> None:
    values = np.array([0.4, 0.4, 0.6, 1.0, 1.0, 1.0, 1.0, 0.6, 0.4])
    assert _levels(values, 2, 8) == (1.0, 0.4)
    assert _core(values, 2, 8) == (3, 7)
    assert _levels(np.ones(3), 0, 3) == (1.0, 0.0)


@pytest.mark.parametrize(("outside", "is_apart"), [(0.5, True), (0.51, False), (-1.0, True)])
def test_a_stretch_stands_out_from_steps_half_as_slow(outside: float, is_apart: bool) -> None:
    values = np.array([outside] * 4 + [1.0] * 3)
    assert _stands_out(values, 4, 7) == is_apart


@pytest.mark.parametrize(("op", "roles"), [("AllToAll", [0, 0]), ("AllReduce", [0, 1])])
def test_sizes_of_exchanges_make_no_role(op: str, roles: list[int]) -> None:
    rows = [
        {"who": who, "comm": 7, "seq": n, "op": 0, "rank": who, "nranks": 2,
         "size_bytes": 1000 * (who + 1), "start_ns": n, "end_ns": n + 1}
        for who in (0, 1) for n in range(4)
    ]  # fmt: skip
    table = {name: [row.get(name, -1) for row in rows] for name in NAMES}
    given = from_columns(table, (op,), [Recorder(None, None, n) for n in (0, 1)])
    assert find_roles(given, (0, 1)).tolist() == roles
