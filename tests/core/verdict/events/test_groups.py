"""Ranks that slow down together and share a node, a rack or another label."""

import numpy as np
import pytest
from numpy.typing import NDArray
from tests.support.member_tables import job_members
from tests.support.verdict_tables import OPEN, POLICY, member, world

from ingero.contract.verdict import VerdictState
from ingero.core.verdict.events.groups import Groups
from ingero.core.verdict.events.job_events import JobEvents
from ingero.core.verdict.members import Member, MemberRegistry


def grouped(
    registry: MemberRegistry, slow: list[int], groups: Groups | None = None, now_s: float = 1000.0
) -> tuple[Groups, NDArray[np.bool_]]:
    size = registry.rows.size
    registry.rows.cusum[:size] = 0.0
    registry.rows.cusum[slow] = 5.1  # on their way to the limit
    found = groups or Groups(registry)
    everyone = np.ones(size, bool)
    return found, found.advance(everyone, everyone, now_s)


def test_ranks_of_a_node_that_slow_down_together_are_a_group() -> None:
    registry = job_members(8)
    groups, inside = grouped(registry, [2, 3])
    (group,) = groups.of_job.values()
    assert (group.shared, group.members, group.of, group.is_open) == ("node n1", [2, 3], 2, False)
    assert np.flatnonzero(inside).tolist() == [2, 3]
    for now_s, is_open in ((1005.9, False), (1006.0, True)):
        grouped(registry, [2, 3], groups, now_s)
        assert group.is_open == is_open


def test_a_group_ends_when_its_members_are_calm_for_ten_seconds() -> None:
    registry = job_members(8)
    groups, _ = grouped(registry, [2, 3])
    grouped(registry, [2, 3], groups, 1006.0)
    grouped(registry, [], groups, 1015.9)
    assert groups.of_job
    grouped(registry, [], groups, 1016.0)
    assert not groups.of_job
    young, _ = grouped(registry, [2, 3], now_s=2000.0)
    grouped(registry, [], young, 2001.0)
    assert not young.of_job  # it was never said


@pytest.mark.parametrize(
    ("slow", "shared"),
    [
        ([2, 3], "node n1"),
        ([2, 4], None),  # nothing in common but the job
        ([2, 3, 4], None),  # two of three: three quarters must share it
        ([2, 3, 4, 5, 6], None),
        ([2], None),
    ],
)
def test_most_of_the_slow_ranks_must_share_what_hardly_anybody_else_has(
    slow: list[int], shared: str | None
) -> None:
    groups, _ = grouped(job_members(8), slow)
    assert [group.shared for group in groups.of_job.values()] == ([shared] if shared else [])


def test_racks_need_three_ranks_of_which_most_are_slow() -> None:
    registry = MemberRegistry(POLICY)
    for rank in range(12):
        labels = (("rack", f"r{rank // 4}"),)
        member = Member(cluster="c", node=f"n{rank}", rank=rank, job="j", labels=labels)
        registry.rows.last_seen_s[registry.put(member, 0.0)] = 1000.0
    registry.rows.limit[:12] = 10.0
    assert not grouped(registry, [4, 5])[0].of_job
    (group,) = grouped(registry, [4, 5, 6])[0].of_job.values()
    assert (group.shared, group.of) == ("rack r1", 4)


def test_ranks_that_are_slow_for_long_join_no_new_group() -> None:
    registry = job_members(8)
    registry.rows.state[2], registry.rows.since_s[2] = 2, 969.9
    assert not grouped(registry, [2, 3])[0].of_job
    registry.rows.since_s[2] = 970.0
    assert grouped(registry, [2, 3])[0].of_job


def test_a_group_needs_others_to_compare_with() -> None:
    assert grouped(job_members(4), [0, 1])[0].of_job
    assert not grouped(job_members(3), [0, 1])[0].of_job


def test_members_that_are_not_judged_are_in_no_group() -> None:
    registry = job_members(8)
    registry.rows.cusum[[2, 3]] = 5.1
    known = np.arange(8) != 3
    everyone = np.ones(8, bool)
    assert Groups(registry).advance(everyone, everyone, 1000.0).any()
    assert not Groups(registry).advance(known, everyone, 1000.0).any()
    assert not Groups(registry).advance(everyone, known, 1000.0).any()


@pytest.mark.parametrize(
    ("slow", "of", "is_shared"), [(3, 5, True), (3, 6, False), (2, 2, False), (3, 3, True)]
)
def test_most_of_a_rack_must_be_slow_and_two_ranks_are_no_rack(
    slow: int, of: int, is_shared: bool
) -> None:
    registry = MemberRegistry(POLICY)
    for rank in range(12):
        labels = (("rack", "r1" if rank < of else f"x{rank}"),)
        registry.put(member(f"n{rank}", rank, labels=labels), 0.0)
    found = Groups(registry).find_shared(np.arange(slow), np.arange(12))
    assert found == (("rack", "r1") if is_shared else None)


def test_the_event_of_a_group_ends_with_the_group() -> None:
    events = JobEvents(world(), POLICY)
    events.open_groups[1] = OPEN
    (over,) = events._follow_groups()
    assert (over.state, over.episode, over.next_step) == (VerdictState.RESOLVED, "e", "")
    assert events.open_groups == {}


def test_what_is_shared_by_too_few_does_not_end_the_search() -> None:
    registry = MemberRegistry(POLICY)
    for rank in range(12):
        labels = (("rack", "r1"), ("row", "w1" if rank < 4 else f"x{rank}"))
        registry.put(Member(cluster="c", node=f"n{rank}", rank=rank, job="j", labels=labels), 0.0)
    found = Groups(registry).find_shared(np.arange(3), np.arange(12))
    assert found == ("row", "w1"), "whatever comes first, the rack is shared by everybody"
