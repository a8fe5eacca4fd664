"""What tells ranks apart: lateness in groups only where own time is open and all groups are met."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.support.blame_tables import lateness, spell

from ingero.core.blame.recorded import compared
from ingero.core.blame.recorded.compared import compare_ranks


class OwnTime(str):
    """Stands for the own times of all workers."""

    period_s = ()


MEASURED: Any = SimpleNamespace(workers=OwnTime("own time"))
PLACES: Any = "places"
CALM, SPLIT = SimpleNamespace(split=()), SimpleNamespace(split=(1, 2))
BY_OWN, BY_GROUP, CHEAP = spell(0, 10, 1), spell(0, 10, 2), spell(0, 10, 3)


def late_in_groups(*codes: int, start: float = 1.0) -> Any:
    return lateness([[[start] * len(codes)]], group=np.array([codes]))


@pytest.fixture
def compare(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what is found, given (findings, spells) by own time and by lateness in groups."""
    monkeypatch.setattr(compared, "find_gpu_bound", lambda *_: None)

    def found(
        own: Any,
        in_groups: Any,
        late: Any,
        together: Any = None,
        places: Any = PLACES,
        chained: Any = (CALM, ()),
    ) -> Any:
        def measure(_: Any, __: Any, ___: Any, in_any_group: bool = False) -> Any:
            return late if in_any_group else together

        judged = {"own time": own, "lateness": in_groups, "chained": chained}
        monkeypatch.setattr(compared, "measure_chained", lambda *_: "chained")
        monkeypatch.setattr(compared, "_could_cost", lambda each, _: each is not CHEAP)
        monkeypatch.setattr(compared, "measure_lateness", measure)
        monkeypatch.setattr(compared, "as_own_time", lambda *_: "lateness")
        monkeypatch.setattr(compared, "find_spells", judged.__getitem__)
        rows: Any = ()
        return compare_ranks(rows, MEASURED, places)

    return found


def test_own_time_that_names_somebody_is_enough(compare: Any) -> None:
    own = (CALM, (BY_OWN,))
    assert compare(own, (CALM, (BY_GROUP,)), late_in_groups(0)) == (None, *own)


@pytest.mark.parametrize("own", [(CALM, ()), (SPLIT, (BY_OWN,)), (CALM, (CHEAP,))])
def test_lateness_in_groups_tells_where_own_time_names_nobody_or_half_of_a_role(
    compare: Any, own: Any
) -> None:
    late = late_in_groups(0, 1)
    assert compare(own, (CALM, (BY_GROUP,)), late) == (late, CALM, (BY_GROUP,))
    assert compare(own, (CALM, ()), late) == (None, *own), "nobody is late either"
    assert compare(own, (SPLIT, (BY_GROUP,)), late) == (None, *own), "or half of a role"
    assert compare(own, (CALM, (BY_GROUP,)), None) == (None, *own)
    assert compare(own, (CALM, (BY_GROUP,)), late, places=None) == (None, *own)
    all_meet = lateness([[[1.0]]])
    assert compare(own, (CALM, (BY_GROUP,)), all_meet) == (None, *own), "there are no groups"


@pytest.mark.parametrize(("code", "is_open"), [(0, True), (1, True), (-1, False)])
def test_a_group_whose_members_left_no_records_may_hold_the_slow_one(
    compare: Any, code: int, is_open: bool
) -> None:
    own, late = (CALM, ()), late_in_groups(code, start=np.nan)
    found = compare(own, (CALM, (BY_GROUP,)), late)
    assert found == ((None, *own) if is_open else (late, CALM, (BY_GROUP,)))


def test_where_all_ranks_meet_lateness_decides_by_itself(compare: Any) -> None:
    together = lateness([[[1.0]]], carried=0.9)
    by_late = (CALM, (BY_GROUP,))
    assert compare((CALM, (BY_OWN,)), by_late, None, together) == (together, *by_late)


def test_who_is_late_without_overlap_is_asked_only_where_nobody_is_late_with_it(
    compare: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    together, apart = lateness([[[1.0]]], carried=0.2), lateness([[[1.0]]])
    monkeypatch.setattr(compared, "without_overlap", lambda _: apart)
    named, nobody = (CALM, (BY_GROUP,)), (CALM, ())
    assert compare((CALM, ()), named, None, together) == (together, *named)
    assert compare((CALM, ()), nobody, None, together) == (apart, *nobody)
    monkeypatch.setattr(compared, "without_overlap", lambda _: None)
    assert compare((CALM, ()), nobody, None, together) == (together, *nobody)


def test_own_time_along_what_ranks_wait_for_tells_where_nobody_or_several_are_found(
    compare: Any,
) -> None:
    one, several = (CALM, (BY_GROUP,)), (CALM, (BY_GROUP, BY_OWN))
    another, either = (CALM, (BY_OWN,)), SimpleNamespace(split=(1, 2))
    assert compare((either, ()), (CALM, ()), None, chained=one) == (None, *one)
    assert compare((SimpleNamespace(split=(2, 3)), ()), (CALM, ()), None, chained=another)[1].split
    for open_question in ((CALM, ()), several, (CALM, (CHEAP,))):
        assert compare(open_question, (CALM, ()), None, chained=one) == (None, *one)
        half = (SPLIT, (BY_GROUP,))
        assert compare(open_question, (CALM, ()), None, chained=half) == (None, *open_question)
    assert compare((CALM, (BY_OWN,)), (CALM, ()), None, chained=one) == (None, CALM, (BY_OWN,))
    together = lateness([[[1.0]]], carried=0.9)
    assert compare((CALM, ()), several, None, together, chained=one) == (together, *several)
    assert compare((CALM, ()), (CALM, ()), None, together, chained=one) == (None, *one)


def test_a_gpu_that_alone_is_behind_is_not_looked_for_elsewhere(
    compare: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    together, nobody = lateness([[[1.0]]], carried=0.9), (CALM, ())
    monkeypatch.setattr(compared, "find_gpu_bound", lambda *_: BY_OWN)
    with_chain = {"together": together, "chained": (CALM, (BY_GROUP,))}
    assert compare(nobody, nobody, None, **with_chain) == (together, *nobody)
