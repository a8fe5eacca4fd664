"""Episodes: what is kept of one, when its figures are computed again, and how it ends."""

from typing import Any

import msgspec
import numpy as np
import pytest
from tests.support.verdict_tables import OPEN, POLICY, world

from ingero.contract.verdict import Verdict, VerdictState
from ingero.core.verdict.episodes import REFRESH_S, Episodes
from ingero.core.verdict.members import MemberRegistry
from ingero.core.verdict.table import (
    HEALTHY,
    RECOVERING,
    STRAGGLER,
    SUSPECT,
)


def episodes(**verdict: Any) -> tuple[Episodes, MemberRegistry]:
    registry = world()
    found = Episodes(registry, POLICY)
    found.open[0] = Verdict(**{**{f: getattr(OPEN, f) for f in OPEN.__struct_fields__}, **verdict})
    return found, registry


@pytest.mark.parametrize(
    ("state", "calm_samples", "is_new"),
    [
        (VerdictState.STRAGGLER, 0, True),
        (VerdictState.LATE, 0, True),
        (VerdictState.NOT_SURE, 0, True),
        (VerdictState.RECOVERING, 0, False),
        (VerdictState.SUSPECT, 0, False),
        (VerdictState.STRAGGLER, 5, False),
    ],
)
def test_figures_are_computed_again_while_a_member_is_blamed_and_slow(
    state: VerdictState, calm_samples: int, is_new: bool
) -> None:
    kept, registry = episodes(state=state, evidence="before")
    registry.rows.calm_samples[0] = calm_samples
    changed = kept._refresh(100.0)
    assert (kept.open[0].evidence != "before") == is_new
    assert [verdict.state for verdict in changed] == (
        [VerdictState.STRAGGLER] if is_new and state is not VerdictState.STRAGGLER else []
    )


@pytest.mark.parametrize(
    ("gone", "said"), [(False, "back among its peers"), (True, "no data any more")]
)
def test_the_end_of_an_episode_says_why(gone: bool, said: str) -> None:
    kept, registry = episodes()
    registry.rows.state[0] = HEALTHY
    (over,) = kept._follow_members([0], np.full(8, gone), 100.0)
    assert (over.state, over.evidence, over.next_step) == (VerdictState.RESOLVED, said, "")
    assert (over.episode, over.excess) == ("e", 0.1)
    assert kept.open == {}
    assert kept._follow_members([0], np.full(8, gone), 101.0) == []


def test_a_recovery_keeps_the_figures_of_the_slow_time() -> None:
    kept, registry = episodes(evidence="now")
    registry.rows.state[0] = RECOVERING
    (found,) = kept._follow_members([0], np.zeros(8, bool), 100.0)
    assert (found.state, found.evidence) == (VerdictState.RECOVERING, "now")
    kept._blamed[0] = OPEN
    (found,) = kept._follow_members([0], np.zeros(8, bool), 101.0)
    assert (found.state, found.evidence) == (VerdictState.RECOVERING, OPEN.evidence)


@pytest.mark.parametrize(("state", "is_restless"), [(HEALTHY, False), (SUSPECT, True)])
def test_steps_are_restless_while_an_episode_of_their_job_is_open(
    state: int, is_restless: bool
) -> None:
    kept, registry = episodes()
    registry.cohorts.is_restless[:2] = not is_restless
    if state == HEALTHY:
        kept.open.clear()
    kept._mark_restless()
    assert registry.cohorts.is_restless[:2].tolist() == [False, is_restless]


@pytest.mark.parametrize(("own_s", "is_slow"), [(1.0, False), (1.04, False), (1.06, True)])
def test_figures_are_computed_again_while_half_of_the_excess_is_left(
    own_s: float, is_slow: bool
) -> None:
    registry = world()
    registry.rows.own_s[0] = own_s
    before = Verdict(episode="e", state=VerdictState.STRAGGLER, node="n1", since=1.0, excess=0.1)
    episodes = Episodes(registry, POLICY)
    assert episodes._is_still_slow(0, before) == is_slow
    assert episodes._is_still_slow(0, msgspec.structs.replace(before, excess=None))


def test_figures_are_computed_again_every_ten_seconds() -> None:
    class Counted(Episodes):
        def _refresh(self, now_s: float) -> list[Verdict]:
            calls.append(now_s)
            return []

    calls: list[float] = []
    registry = world()
    episodes = Counted(registry, POLICY)
    live = np.zeros(registry.rows.size, bool)
    for now_s in (1000.0, 1009.5, 1000.0 + REFRESH_S, 1019.0, 1020.0):
        episodes.advance(live, np.zeros(registry.cohorts.size), now_s)
    assert calls == [1000.0, 1010.0, 1020.0]


def test_young_episodes_take_turns_in_having_their_figures_computed_again() -> None:
    registry = world(24)
    rows = registry.rows
    rows.state[:7], rows.recent_excess[:7], rows.cusum[:7] = STRAGGLER, 0.1, 12.0
    rows.last_seen_s[:24], rows.own_s[:7], rows.since_s[:7] = 1010.0, 1.2, 1000.0
    episodes = Episodes(registry, POLICY)
    for index in range(7):
        episodes._suspect(index, STRAGGLER, 1010.0)
    before = dict(episodes.open)
    episodes._refreshed_s = 1010.0
    rows.recent_excess[:7] = 0.2
    again: list[list[int]] = []
    for now_s in (1011.0, 1012.0, 1013.0):
        episodes.open = dict(before)
        episodes.advance(np.zeros(rows.size, bool), np.zeros(registry.cohorts.size), now_s)
        again.append([i for i in before if episodes.open[i].excess != before[i].excess])
    assert [len(each) for each in again] == [3, 3, 3]
    assert set().union(*again) == set(range(7))
    rows.since_s[:6] = 940.0
    assert episodes._young(1013.0) == [6], "the others are a minute old"


def test_in_large_cohorts_figures_of_young_episodes_wait_for_their_ten_seconds() -> None:
    registry = world(8)
    rows = registry.rows
    rows.state[0], rows.since_s[0], rows.last_seen_s[:8] = STRAGGLER, 1000.0, 1000.0
    episodes = Episodes(registry, POLICY)
    episodes._suspect(0, STRAGGLER, 1000.0)
    assert episodes._young(1001.0) == [0]
    registry.cohorts.expected[rows.cohort[0]] = 10_000
    assert episodes._young(1001.0) == []


def test_a_member_that_was_not_named_yet_is_named_once() -> None:
    episodes = Episodes(world(), POLICY)
    episodes._unsaid.add(0)
    assert [(v.state, v.rank) for v in episodes._refresh(100.0)] == [(VerdictState.STRAGGLER, 1)]
    assert episodes._refresh(110.0) == []


def test_a_straggler_that_an_event_of_its_job_explains_is_not_named() -> None:
    episodes = Episodes(world(), POLICY)
    (suspected,) = episodes._suspect(0, SUSPECT, 100.0)
    assert suspected.state is VerdictState.SUSPECT
    episodes.events.explains = lambda *_: True  # type: ignore[method-assign]
    (still,) = episodes._suspect(0, SUSPECT, 100.0)
    assert still.state is VerdictState.SUSPECT, "a suspect is nobody's event yet"
    (resolved,) = episodes._suspect(0, STRAGGLER, 110.0)
    said = (resolved.state, resolved.evidence)
    assert said == (VerdictState.RESOLVED, "explained by the event of its job")
    assert episodes._suspect(0, STRAGGLER, 120.0) == []
    assert (episodes.open, episodes._unsaid) == ({}, {0})


def test_a_member_that_is_healthy_again_is_forgotten() -> None:
    registry = world()
    episodes = Episodes(registry, POLICY)
    episodes._unsaid.add(0)
    registry.rows.state[0] = HEALTHY
    assert episodes._follow_members([0], np.zeros(8, bool), 100.0) == []
    assert episodes._unsaid == set()
