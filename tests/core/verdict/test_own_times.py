"""Own times wait for their peers, step by step; late ones are compared with what was kept."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingero.core.verdict.columns import Rows, codes, flags, floats, floats32, integers
from ingero.core.verdict.members import Member, MemberRegistry, digest_of
from ingero.core.verdict.own_times import (
    Frame,
    FrameBuffer,
    SampleBatch,
    latest,
    make_batch,
    select,
)
from ingero.core.verdict.residuals import _turns
from ingero.core.verdict.table import HEALTHY, SUSPECT


def batch(members: list[int], steps: list[int], own_s: list[float] | None = None) -> SampleBatch:
    own = np.array(own_s) if own_s is not None else np.ones(len(members))
    return make_batch(np.array(members), own, np.array(steps))


COHORT = np.array([0, 0, 0, 1, 1])  # of five members


def close(buffer: FrameBuffer, now_s: float = 0.0, wait_s: float = 2.0) -> list[Frame]:
    return buffer.close(COHORT, np.array([3.0, 2.0]), np.full(2, wait_s), now_s)


def seen(frames: list[Frame]) -> list[list[tuple[int, int]]]:
    """Return (member, step) of each frame."""
    return [list(zip(f.batch.member.tolist(), f.batch.step.tolist(), strict=True)) for f in frames]


def test_a_step_is_complete_when_all_live_members_have_reported_it() -> None:
    buffer = FrameBuffer()
    buffer.add(batch([0, 2], [7, 7]), 0.0)
    assert close(buffer) == []
    buffer.add(batch([1], [7]), 0.5)
    assert seen(close(buffer, 0.5)) == [[(0, 7), (1, 7), (2, 7)]]
    assert close(buffer, 9.0) == []


def test_a_step_is_closed_without_the_missing_after_the_wait() -> None:
    buffer = FrameBuffer()
    buffer.add(batch([0, 2], [7, 7]), 1.0)
    assert close(buffer, 2.9) == []
    assert seen(close(buffer, 3.0)) == [[(0, 7), (2, 7)]]
    assert buffer.take_late() is None


def test_a_step_that_few_report_is_late() -> None:
    """One of three is less than half; the others reported that step before."""
    buffer = FrameBuffer()
    buffer.add(batch([1], [5]), 0.0)
    assert close(buffer, 2.0) == []
    late = buffer.take_late()
    assert late is not None and (late.member.tolist(), late.step.tolist()) == ([1], [5])
    assert buffer.take_late() is None
    buffer.add(batch([3], [5]), 10.0)  # one of two is half
    assert seen(close(buffer, 12.0)) == [[(3, 5)]]


def test_steps_come_in_order_and_each_frame_holds_one_of_each_cohort() -> None:
    buffer = FrameBuffer()
    buffer.add(batch([2, 1, 0, 4, 3], [8, 8, 8, 3, 3]), 0.0)
    buffer.add(batch([0, 1, 2], [7, 7, 7]), 0.0)
    frames = close(buffer)
    assert seen(frames) == [[(0, 7), (1, 7), (2, 7), (3, 3), (4, 3)], [(0, 8), (1, 8), (2, 8)]]
    assert [frame.cohort.tolist() for frame in frames] == [[0, 0, 0, 1, 1], [0, 0, 0]]


def test_a_repeated_sample_counts_once() -> None:
    buffer = FrameBuffer()
    buffer.add(batch([0, 1, 2, 1], [7, 7, 7, 7], [1.0, 2.0, 3.0, 9.0]), 0.0)
    (frame,) = close(buffer)
    assert frame.batch.own_s.tolist() == [1.0, 2.0, 3.0]
    assert buffer.duplicates == 1


@given(
    st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6)), min_size=1, max_size=40, unique=True),
    st.integers(0, 2**32 - 1),
)
def test_every_sample_comes_out_once_in_any_order_of_arrival(
    samples: list[tuple[int, int]], seed: int
) -> None:
    order = np.random.default_rng(seed).permutation(len(samples))
    buffer = FrameBuffer()
    for at in order:
        buffer.add(batch([samples[at][0]], [samples[at][1]]), 0.0)
    frames = [*close(buffer), *close(buffer, 100.0)]
    late = buffer.take_late()
    found = [pair for frame in seen(frames) for pair in frame]
    if late is not None:
        found += zip(late.member.tolist(), late.step.tolist(), strict=True)
    assert sorted(found) == sorted(samples)
    assert all(len({m for m, _ in frame}) == len(frame) for frame in seen(frames))


def test_the_range_of_own_times_is_closed() -> None:
    own = np.array([0.9e-9, 1e-9, 1e6, 1.1e6, np.nan, -1.0])
    found = make_batch(np.arange(6), own, np.arange(6))
    assert (found.own_s.tolist(), found.step.tolist()) == ([1e-9, 1e6], [1, 2])


def test_an_own_time_of_nothing_is_a_small_part_of_its_step() -> None:
    """Collectives hide all compute of some steps; leaving these out would change what is usual."""
    own, span = np.array([0.0, 0.5, 0.0, -1.0]), np.array([2.0, 2.0, 0.0, 2.0])
    found = make_batch(np.arange(4), own, np.arange(4), span_s=span)
    assert (found.own_s.tolist(), found.step.tolist()) == ([0.002, 0.5], [0, 1])


def test_the_last_sample_of_each_member_is_the_latest() -> None:
    found = latest([batch([0, 1, 0], [1, 1, 2], [1, 2, 3]), batch([1], [5], [9])])
    assert dict(zip(found.member.tolist(), found.own_s.tolist(), strict=True)) == {0: 3.0, 1: 9.0}
    assert select(found, np.array([0])).own_s.tolist() == [3.0]


def test_turns_hold_every_member_once_in_order() -> None:
    turns = _turns(np.array([3, 1, 3, 3, 1]))
    assert [turn.tolist() for turn in turns] == [[1, 0], [4, 2], [3]]
    assert _turns(np.empty(0, np.intp)) == []


class Table(Rows):
    bias = floats(np.nan)
    history = floats32(0.0, width=3)
    count = integers()
    state = codes()
    flag = flags()


def test_a_table_grows_and_keeps_its_rows() -> None:
    table = Table()
    for number in range(130):
        assert table.append() == number
        table.count[number] = number
    assert table.size == 130
    assert table.count[:130].tolist() == list(range(130))
    assert np.isnan(table.bias[:130]).all()
    assert table.history.shape[1] == 3
    table.bias[:130], table.flag[5] = 1.0, True
    table.reset(np.array([5, 6]), keep=("count",))
    assert np.isnan(table.bias[[5, 6]]).all()
    assert (table.bias[7], bool(table.flag[5]), table.count[5]) == (1.0, False, 5)


def member(rank: int | None = 1, **labels: object) -> Member:
    return Member(**{"cluster": "c", "node": "n", "rank": rank, "job": "j", **labels})  # type: ignore[arg-type]


def test_members_are_known_by_job_node_and_rank_and_compared_by_labels() -> None:
    registry = MemberRegistry()
    first = registry.put(member(1, gpu_model="x"), 5.0)
    assert registry.put(member(1, gpu_model="x"), 6.0) == first
    assert registry.put(member(2, gpu_model="x"), 6.0) != first
    assert registry.put(member(None), 6.0) not in (first, first + 1)
    assert registry.member_count == 3
    assert registry.find(member(1)) == first
    assert registry.find(member(9)) is None
    assert registry.find_named("j", "n", 2) == first + 1
    assert registry.find_named("j", "elsewhere", 2) is None
    cohort = registry.rows.cohort[first]
    assert registry.cohorts.first_seen_s[cohort] == 5.0
    assert registry.cohorts.last_report_s[cohort] == 6.0
    registry.rows.samples[first] = 50
    registry.put(member(1, gpu_model="x", usd_per_gpu_hour=2.0, gpus=3), 7.0)
    assert (registry.rows.samples[first], registry.rows.usd_per_hour[first]) == (50, 6.0)
    registry.put(member(1, gpu_model="y"), 7.0)  # another cohort: it starts over
    assert registry.rows.samples[first] == 0
    assert registry.rows.cohort[first] != cohort
    assert np.isnan(registry.rows.usd_per_hour[first])


def test_rank_zero_often_does_more() -> None:
    registry = MemberRegistry()
    rows = [registry.put(member(rank), 0.0) for rank in (0, 1, None)]
    assert registry.rows.is_structural[rows].tolist() == [True, False, False]


def test_what_members_share_is_kept_as_digests() -> None:
    labels = (("rack", "r1"), ("zone", "z"))
    made = member(1, gpu_model="x", role="pp0", labels=labels)
    assert made.shared == (("node", "n"), ("GPU model", "x"), ("stage", "pp0"), *labels)
    registry = MemberRegistry()
    shares = registry.rows.shares[registry.put(made, 0.0)]
    assert shares[:5].tolist() == [digest_of(*each) for each in made.shared]
    assert (shares[5:] == 0).all()
    assert all(digest_of(*each) > 0 for each in made.shared)
    many = member(1, labels=tuple((f"l{n}", "v") for n in range(20)))
    assert len(many.shared) == 8
    assert digest_of("a", "b") != digest_of("ab", "")


@pytest.mark.parametrize(("silent_s", "is_freed"), [(100.0, False), (100.1, True)])
def test_members_that_are_silent_for_long_are_freed(silent_s: float, is_freed: bool) -> None:
    registry = MemberRegistry()
    silent, never, slow = (registry.put(member(rank), 0.0) for rank in (1, 2, 3))
    registry.rows.last_seen_s[[silent, slow]] = 50.0
    registry.rows.state[slow] = SUSPECT
    freed = registry.free_silent_members(50.0 + silent_s, 100.0)
    assert freed == ([silent] if is_freed else [])
    assert (registry.find(member(1)) is None) == is_freed
    assert registry.find(member(2)) == never
    if is_freed:
        assert registry.put(member(8), 200.0) == silent  # its row is given to the next one
        assert registry.rows.state[silent] == HEALTHY


def test_cohorts_without_reports_end_unless_something_is_open() -> None:
    registry = MemberRegistry()
    for rank, job in ((1, "a"), (2, "b"), (3, "c")):
        registry.rows.last_seen_s[registry.put(member(rank, job=job), 0.0)] = 1.0
    registry.rows.state[1] = SUSPECT
    events = [int(registry.rows.cohort[2])]
    assert registry.free_ended_cohorts(100.0, 100.0, events) == ([], 0)
    assert registry.free_ended_cohorts(100.1, 100.0, events) == ([0], 1)
    assert registry.find(member(1, job="a")) is None
    before = registry.cohorts.size
    registry.put(member(4, job="d"), 200.0)
    assert registry.cohorts.size == before  # the row of the cohort is used again


def test_peers_were_seen_lately_in_the_same_cohort() -> None:
    registry = MemberRegistry()
    rows = [registry.put(member(rank), 0.0) for rank in range(1, 6)]
    other = registry.put(member(9, role="other"), 0.0)
    registry.rows.last_seen_s[rows] = [100.0, 70.0, 69.9, 200.0, 0.0]
    registry.rows.last_seen_s[other] = 100.0
    assert registry.peers_of(rows[0], 30.0).tolist() == [rows[1], rows[3]]
    registry.cohorts.patience_s[registry.rows.cohort[rows[0]]] = 40.0
    assert registry.peers_of(rows[0], 30.0).tolist() == [rows[1], rows[2], rows[3]]


def test_a_rank_that_moved_is_gone_where_it_was() -> None:
    registry = MemberRegistry()
    before = registry.put(member(1, node="old"), 0.0)
    registry.rows.last_seen_s[before] = 90.0
    registry.claim_rank(before, 10.0)
    assert registry.rows.last_seen_s[before] == 90.0
    after = registry.put(member(1, node="new"), 100.0)
    registry.claim_rank(after, 10.0)
    assert registry.rows.last_seen_s[before] == 10.0


def test_the_usual_step_is_a_median_and_other_models_set_a_pace() -> None:
    registry = MemberRegistry()
    mine = registry.put(member(1, gpu_model="a"), 0.0)
    theirs = registry.put(member(2, gpu_model="b"), 0.0)
    registry.put(member(3, gpu_model="b", role="x"), 0.0)
    cohort = int(registry.rows.cohort[mine])
    assert registry.usual_step_s(cohort) == 0.0
    registry.cohorts.step_log[cohort, :3] = np.log([1.0, 2.0, 9.0])
    assert registry.usual_step_s(cohort) == pytest.approx(2.0)
    assert registry.slowest_model_s(mine) == 0.0
    registry.cohorts.level[registry.rows.cohort[theirs]] = np.log(3.0)
    assert registry.slowest_model_s(mine) == pytest.approx(3.0)
    beside = registry.models_beside(cohort)
    assert beside == [cohort, int(registry.rows.cohort[theirs])]


def test_a_member_that_starts_over_keeps_its_identity() -> None:
    registry = MemberRegistry()
    index = registry.put(member(0, usd_per_gpu_hour=2.0), 0.0)
    rows = registry.rows
    rows.last_seen_s[index], rows.bias[index], rows.samples[index] = 9.0, 0.3, 70
    kept = (int(rows.cohort[index]), int(rows.job[index]), rows.shares[index].tolist())
    rows.forget(np.array([index]))
    assert kept == (int(rows.cohort[index]), int(rows.job[index]), rows.shares[index].tolist())
    assert (rows.last_seen_s[index], rows.usd_per_hour[index]) == (9.0, 2.0)
    assert rows.is_structural[index]
    assert (rows.bias[index], rows.samples[index]) == (0.0, 0)
