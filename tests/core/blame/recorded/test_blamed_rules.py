"""Who is blamed among several suspects: those beside a slow stage and victims are not."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.support.blame_tables import blamed, lateness, spell
from tests.support.other_shapes import context_ring
from tests.support.simulated_job import Noise, simulate

from ingero.contract.verdict import CauseClass
from ingero.core.blame import records
from ingero.core.blame.record_text import _other_ranks
from ingero.core.blame.recorded import blamed as blaming
from ingero.core.blame.recorded.blamed import (
    _is_costly,
    _is_victim,
    _latest,
    _meets_all,
    _stands_out,
    _swaps,
    _unless_launching,
    _waits_everywhere,
)
from ingero.core.blame.recorded.lateness import _carried_in_groups
from ingero.core.blame.recorded.loss import COSTLY, SIGMAS, Loss, block_error
from ingero.core.blame.recorded.spells import _core
from ingero.core.blame.records import _unless_others_wait


@pytest.mark.parametrize(
    ("excess_s", "is_pipeline", "is_costly"),
    [
        pytest.param(0.19, False, False, id="a side effect"),
        pytest.param(0.21, False, True, id="more than a fifth of the largest"),
        pytest.param(0.39, True, False, id="beside a slow stage"),
        pytest.param(0.41, True, True, id="more than a slow stage hides"),
    ],
)
def test_a_rank_beside_a_much_slower_one_is_not_costly(
    excess_s: float, is_pipeline: bool, is_costly: bool
) -> None:
    mine, largest = spell(0, 100, excess_s=excess_s), spell(0, 100, 1, excess_s=1.0)
    job: Any = SimpleNamespace(
        exact_ends=True,
        step_s=5.0,
        spells=[mine, largest],
        collectives=SimpleNamespace(has_op=lambda _: np.array([is_pipeline])),
    )
    assert _is_costly(mine, job) == is_costly
    assert _is_costly(largest, job)
    assert _is_costly(spell(0, 100, excess_s=0.1, stall_period=7), job), "it is no accident"
    job.spells = [mine, spell(100, 200, 1, excess_s=1.0)]
    assert _is_costly(mine, job), "a slower one in other steps explains nothing"
    job.spells = [mine, largest]
    job.exact_ends = False
    assert _is_costly(mine, job), "without exact times only a replay tells"


def meeting(**late_s: tuple[float, float]) -> Any:
    """Return a job in which ranks 0 and 1 meet in groups, each so late."""
    by_rank = [{name: both[rank] for name, both in late_s.items()} for rank in (0, 1)]
    return SimpleNamespace(places=(), meeting_lateness=lambda _, worker: by_rank[worker])


@pytest.mark.parametrize(
    ("excess_s", "job", "is_victim"),
    [
        pytest.param(1.48, meeting(a=(-0.2, 0.0), b=(-0.1, 0.1)), True, id="earlier everywhere"),
        pytest.param(1.52, meeting(a=(-0.2, 0.0)), False, id="nearly as slow itself"),
        pytest.param(1.4, meeting(a=(-0.2, 0.0), b=(0.1, 0.0)), False, id="waited for elsewhere"),
        pytest.param(1.4, meeting(), False, id="they never meet"),
        pytest.param(1.4, SimpleNamespace(places=None), False, id="nothing is known"),
    ],
)
def test_a_rank_that_waits_for_a_slower_one_wherever_they_meet_is_its_victim(
    excess_s: float, job: Any, is_victim: bool
) -> None:
    mine, other = spell(0, 100, excess_s=excess_s), spell(0, 100, 1, excess_s=2.0)
    assert _is_victim(job, mine, other) == is_victim
    elsewhere = spell(60, 200, 1, excess_s=2.0)
    assert not _is_victim(job, mine, elsewhere), "most of its steps must be the same"


def test_a_rank_costs_at_most_what_its_replicas_wait_for_it() -> None:
    """Two places, of which the first is a pair of stages: how late it is there does not matter."""
    late = 0.05 + 0.01 * np.resize([1.0, -1.0, 0.0], 300)
    start = np.stack([np.full(300, 9.0), late], axis=1)[None]
    places = SimpleNamespace(is_pair=np.array([[True, False]]), start_s=start)
    job: Any = SimpleNamespace(places=places, step_s=1.0)
    error = block_error(late[:250], lambda part: float(part.mean()))
    assert error > 0
    expected = float(late[:250].mean()) + SIGMAS * error
    assert _latest(job, spell(0, 250)) == pytest.approx(expected)
    job.step_s = 1.01 * expected / COSTLY
    assert _latest(job, spell(0, 250)) == np.inf, "so little is not measured well"
    places.is_pair = np.array([[False, False]])
    assert _latest(job, spell(0, 250)) == np.inf, "without stages nothing is hidden"


def test_a_group_is_judged_by_the_calls_of_its_own() -> None:
    """Two groups of two places each, with a call of their own, carry all of their scatter."""
    late = np.repeat(np.random.default_rng(3).normal(size=(2, 200, 2)), 2, axis=2)
    group = np.array([[0, 0, 1, 1]] * 2)
    assert _carried_in_groups(late, group, group).min() == pytest.approx(1.0)
    alone = late.copy()
    alone[:, :, 1] = np.random.default_rng(4).normal(size=(2, 200))
    carried = _carried_in_groups(alone, group, group)
    assert carried[:, :2].max() < 0.2, "places of one group carry less"
    assert carried[:, 2:].min() == pytest.approx(1.0)
    nobody = np.array([[0, 0, -1, -1]] * 2)
    assert _carried_in_groups(alone, nobody, nobody)[:, 2:].tolist() == [[1.0, 1.0]] * 2


def test_nothing_is_said_about_ranks_that_are_not_known() -> None:
    findings = SimpleNamespace(excess=np.array([0.2, np.nan]), suspects=())
    job: Any = SimpleNamespace(findings=findings, lateness=None, name=lambda rank: f"rank {rank}")
    assert _other_ranks(job, {0}) == []
    findings.excess[1] = 0.012
    (line,) = _other_ranks(job, {0})
    assert line.startswith("own times of the other rank: at most 1.2%")
    findings.excess[0] = 0.01
    assert _other_ranks(job, set())[0].startswith("own times of all 2 ranks: at most 1.2%")


def test_a_part_of_less_than_half_is_not_the_core_of_a_stretch() -> None:
    excess = np.zeros(200)
    excess[50:150] = 1.0
    excess[80:120] = -5.0
    assert _core(excess, 50, 150) == (50, 150)
    excess[80:101] = 1.0
    assert _core(excess, 50, 150) == (50, 101)


@pytest.mark.parametrize(
    ("usuals", "at_one_place", "is_out"),
    [
        pytest.param(5.0, False, True, id="five times what is usual"),
        pytest.param(4.9, False, False, id="less, and late at any place"),
        pytest.param(4.9, True, True, id="less, but always late at the same place"),
        pytest.param(2.0, True, True, id="twice what is usual, at the same place"),
        pytest.param(1.9, True, False, id="hardly more than others"),
    ],
)
def test_a_rank_stands_out_in_sum_or_at_one_place(
    usuals: float, at_one_place: bool, is_out: bool
) -> None:
    """Three ranks are last at one of two places in turns; so is the first, or always there."""
    turns = [[[1.0, 0.0], [0.0, 1.0]]] * 4
    turns[0] = [[5.0, 0.0], [5.0, 0.0]] if at_one_place else [[4.9, 0.0], [0.0, 4.9]]
    late = lateness(turns)
    charge = 0.1 * usuals
    assert _stands_out(late, spell(0, 2), charge, 0.1, {0}) == is_out
    assert _stands_out(late, spell(0, 2), charge, 0.1, {0, 1, 2, 3}) == (usuals >= 2)
    in_groups = lateness(turns, group=np.zeros((4, 2), int))
    assert _stands_out(in_groups, spell(0, 2), charge, 0.1, {0}) == (usuals >= 5)


def test_only_the_steps_of_the_spell_show_whether_it_stands_out() -> None:
    late = lateness([[[0.0], [5.0], [5.0]], [[9.0], [1.0], [1.0]], [[9.0], [1.0], [1.0]]])
    assert _stands_out(late, spell(1, 3), 0.3, 0.1, set())
    assert not _stands_out(late, spell(0, 3), 0.3, 0.1, set())


def test_only_a_late_host_that_is_compared_with_all_may_be_launching(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(blaming, "launches_more", lambda *_: True)
    all_meet, places = SimpleNamespace(group=None), SimpleNamespace()

    def cause(found: CauseClass, job: Any, stalls: tuple[int, ...] = ()) -> CauseClass:
        job = SimpleNamespace(**{"collectives": (), "measured": (), **job})
        return _unless_launching(job, spell(0, 10, stalls=stalls), found)

    known = {"lateness": all_meet, "places": places}
    assert cause(CauseClass.HOST, known) is CauseClass.COMPUTE
    assert cause(CauseClass.UNKNOWN, known) is CauseClass.UNKNOWN
    assert cause(CauseClass.HOST, known, stalls=(1, 5)) is CauseClass.HOST
    assert cause(CauseClass.HOST, {**known, "places": None}) is CauseClass.HOST
    assert cause(CauseClass.HOST, {**known, "lateness": None}) is CauseClass.HOST
    in_groups = SimpleNamespace(group=())
    assert cause(CauseClass.HOST, {**known, "lateness": in_groups}) is CauseClass.HOST
    monkeypatch.setattr(blaming, "launches_more", lambda *_: False)
    assert cause(CauseClass.HOST, known) is CauseClass.HOST


def test_a_gpu_that_alone_is_behind_costs_at_most_what_all_ranks_add(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Hosts that wait for it are late in turn: together they add 0.5 s to a step of the spell."""
    late = lateness([[[9.0], [0.2], [0.2]], [[9.0], [0.3], [np.nan]]])
    job: Any = SimpleNamespace(
        lateness=late, measured=SimpleNamespace(workers=SimpleNamespace(period_s=np.ones(3)))
    )
    monkeypatch.setattr(blaming, "_class_of", lambda *_: (CauseClass.HOST, 0.01, 0.02))
    for excess_s, charge_s in ((0.4, 0.5), (0.6, 0.6)):
        found = spell(1, 3, excess_s=excess_s)
        monkeypatch.setattr(blaming, "find_gpu_bound", lambda *_, found=found: found)
        (one,) = blaming._by_queue(job, 1.0)
        assert (one.cause, one.charge_s) == (CauseClass.COMPUTE, pytest.approx(charge_s))
        assert (one.host_s, one.gpu_s, one.loss.calm_s) == (0.01, 0.02, None)
        assert one.is_by_queue
        assert one.loss.lost_s == pytest.approx(charge_s)
    monkeypatch.setattr(blaming, "find_gpu_bound", lambda *_: None)
    assert blaming._by_queue(job, 1.0) == []


def test_a_rank_that_meets_somebody_without_records_is_not_compared() -> None:
    met, alone, always = [[1.0, 2.0]], [[1.0, np.nan]], slice(None)
    both = np.array([[0, 1]])
    assert _meets_all(lateness([met], comm=both), 0, always)
    assert not _meets_all(lateness([alone], comm=both), 0, always)
    assert _meets_all(lateness([alone], comm=np.array([[0, 0]])), 0, always), (
        "a broadcast makes nobody wait"
    )
    assert not _meets_all(lateness([[[np.nan, 1.0]]], comm=both), 0, always), (
        "at the first communicator"
    )
    assert _meets_all(lateness([alone], comm=np.array([[0, -1]])), 0, always), (
        "it meets nobody there"
    )
    assert _meets_all(lateness([alone], comm=both, is_pair=np.array([[False, True]])), 0, always)
    later = lateness([[*alone, *met]], comm=both)
    assert not _meets_all(later, 0, slice(0, 1)), "others left records later only"
    assert _meets_all(later, 0, slice(1, 2))


def test_who_costs_less_than_all_wait_for_somebody_without_records_is_not_blamed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found, job = [blamed(0, 10, 0.2), blamed(0, 10, 0.3, 1)], SimpleNamespace(step_s=4.0)
    for share, kept in ((0.05, [0, 1]), (0.051, [1]), (0.1, []), (0.0, [0, 1])):
        monkeypatch.setattr(records, "unexplained_wait", lambda _, share=share: share)
        left = _unless_others_wait(job, found)  # type: ignore[arg-type]
        assert [each.worker for each in left] == kept


@pytest.mark.parametrize(
    ("late_s", "pair", "stalls", "waits"),
    [
        pytest.param((-1.0, 5.0), False, (), False, id="late in one of its groups"),
        pytest.param((-1.0, -0.1), False, (), True, id="early in both"),
        pytest.param((-1.0, 5.0), True, (), True, id="pairs of stages wait by nature"),
        pytest.param((-1.0, -0.1), False, (3, 9), False, id="a rank that stalls is mostly early"),
        pytest.param((-1.0, 0.0), False, (), False, id="neither early nor late"),
    ],
)
def test_a_rank_that_comes_early_to_all_its_groups_costs_nothing(
    late_s: tuple[float, float], pair: bool, stalls: tuple[int, ...], waits: bool
) -> None:
    start = np.tile(np.array(late_s), (1, 100, 1))
    start[0, :50, 1] += 0.05
    start[0, 50:, 1] -= 0.05
    places = SimpleNamespace(
        start_s=start, is_pair=np.array([[False, pair]]), comm=np.array([[0, 1]])
    )
    job: Any = SimpleNamespace(places=places)
    assert _waits_everywhere(job, spell(0, 100, stalls=stalls)) == waits
    job.places = None
    assert not _waits_everywhere(job, spell(0, 100))


def test_a_worker_of_a_ring_swaps_and_one_that_only_sends_does_not() -> None:
    shape, noise = context_ring(4, 2, 2, ahead=False), Noise(one_kernel=True)
    both = simulate(shape, 8, noise=noise).columns
    for columns, is_swap in ((both, True), (both.take(~both.has_op({"Recv"})), False)):
        measured = SimpleNamespace(ranks=tuple(range(8)))
        job: Any = SimpleNamespace(collectives=columns, measured=measured)
        assert _swaps(job, spell(0, 4, 3)) is is_swap


def test_only_who_costs_a_share_of_the_step_is_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps take 0.1 s: alone 1.5 % of that are enough, and 3 % if several are late together."""
    monkeypatch.setattr(blaming, "_class_of", lambda *_: (CauseClass.HOST, 0.01, 0.02))
    monkeypatch.setattr(blaming, "_stands_out", lambda *_: True)
    monkeypatch.setattr(blaming, "_usual_charge", lambda *_: 0.0)
    monkeypatch.setattr(blaming, "_by_queue", lambda *_: [])
    job: Any = SimpleNamespace(
        lateness=lateness([[[0.0]]] * 2),
        measured=SimpleNamespace(workers=SimpleNamespace(period_s=np.full(10, 0.1))),
        spells=[spell(0, 10), spell(0, 10, 1)],
    )
    for alone, joint, charges in (
        (0.0016, 0.0016, [0.0016, 0.0016]),
        (0.0014, 0.0029, []),
        (0.0014, 0.0031, [0.0031, 0.0031]),
    ):
        by_count = {1: np.array([alone]), 2: np.array([joint])}
        monkeypatch.setattr(
            blaming, "charge_of", lambda _, __, named, ___, known=by_count: known[len(named)]
        )
        assert [each.charge_s for each in blaming._by_lateness(job)] == charges


@pytest.mark.parametrize(
    ("cause", "group", "stalls", "lost_s"),
    [
        pytest.param(CauseClass.HOST, None, (), 0.2, id="a late host where all meet"),
        pytest.param(CauseClass.COMPUTE, None, (), 0.3, id="a GPU is waited for again and again"),
        pytest.param(CauseClass.HOST, (), (), 0.3, id="groups wait for each other"),
        pytest.param(CauseClass.HOST, None, (1, 5), 0.3, id="what a stall adds waits in queues"),
    ],
)
def test_a_late_host_adds_no_more_than_it_is_late_where_all_meet(
    monkeypatch: pytest.MonkeyPatch,
    cause: CauseClass,
    group: tuple[int, ...] | None,
    stalls: tuple[int, ...],
    lost_s: float,
) -> None:
    monkeypatch.setattr(blaming, "most_added", lambda *_: 0.3)
    late = SimpleNamespace(group=group)
    job: Any = SimpleNamespace(exact_ends=True, lateness=late, collectives=(), measured=())
    one = replace(blamed(0, 10, 0.2), cause=cause, spell=spell(0, 10, stalls=stalls))
    bound = Loss(1.0, None, 0.9, None)
    assert blaming._at_most(job, one, [one], bound).lost_s == lost_s
    beside, apart = replace(one, spell=spell(0, 8, 1, stalls=stalls)), blamed(10, 20, 0.2, 2)
    assert blaming._at_most(job, one, [one, beside, apart], bound).lost_s == lost_s / 2
    short = replace(bound, slow_s=0.1)
    assert blaming._at_most(job, one, [one], short).lost_s == 0.1, "a step is no shorter than that"
    by_queue = replace(one, is_by_queue=True)
    assert blaming._at_most(job, by_queue, [by_queue], bound) is bound
    job.exact_ends = False
    assert blaming._at_most(job, one, [one], bound) is bound
    job.exact_ends = True
    monkeypatch.setattr(blaming, "most_added", lambda *_: None)
    assert blaming._at_most(job, one, [one], bound) is bound, "it cannot be replayed"


@pytest.mark.parametrize(
    ("late", "is_costly", "usual_s", "is_found"),
    [
        pytest.param(None, True, 0.05, True, id="costly by own time"),
        pytest.param(None, False, 0.05, False, id="own time could not cost as much"),
        pytest.param((), False, 0.05, True, id="lateness found it"),
        pytest.param(None, True, 0.07, False, id="others add a third as much"),
    ],
)
def test_who_is_waited_for_adds_far_more_than_others_of_its_role(
    monkeypatch: pytest.MonkeyPatch, late: Any, is_costly: bool, usual_s: float, is_found: bool
) -> None:
    """The suspect adds 0.2 s of a step of 1 s, two peers what is usual; rank 4 has no peer."""
    monkeypatch.setattr(blaming, "_is_costly", lambda *_: is_costly)
    monkeypatch.setattr(blaming, "_class_of", lambda *_: (CauseClass.HOST, 0.01, 0.02))
    added = {0: 0.2, 1: usual_s / 2, 2: 3 * usual_s / 2, 3: 0.2, 4: 0.2}
    monkeypatch.setattr(blaming, "_added_alone", lambda _, __, worker, ___: added[worker])
    workers = SimpleNamespace(cohort=np.array([0, 0, 0, 0, 1]))
    job: Any = SimpleNamespace(
        exact_ends=True, lateness=late, step_s=1.0, measured=SimpleNamespace(workers=workers),
        spells=[spell(0, 10), spell(0, 10, 3)],
    )  # fmt: skip
    found = blaming._by_dependence(job)
    assert [each.worker for each in found] == ([0, 3] if is_found else [])
    assert all(each.loss == Loss(1.0, None, 0.2, None) for each in found)
    job.spells = [spell(0, 10, 4)]
    assert bool(blaming._by_dependence(job)) == (late is not None or is_costly), "it has no peers"
    job.exact_ends = False
    assert blaming._by_dependence(job) == []
