"""Jobs in which no repeating step is recognised are said to be unjudged."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ingero.contract.collective import CollectiveRecord, CollectiveSource
from ingero.contract.verdict import VerdictState
from ingero.core.counted import counted
from ingero.core.verdict.events.stepless import OVER_S, SAID_AFTER_S, SILENT_S, SteplessJobs

CALL = CollectiveRecord(
    job="llm", node="n0", global_rank=0, comm=1, seq=1, op="AllReduce", rank=0, nranks=8,
    peer=None, datatype="float32", reduce_op="sum", size_bytes=1 << 20, stream=None,
    start_ns=1, end_ns=2, gpu_duration_ns=1, source=CollectiveSource.PLUGIN,
)  # fmt: skip
KEYS = {number: (f"n{number // 4}", "llm", number) for number in range(8)}
CALLS = dict.fromkeys(KEYS, (CALL,))


def _after(seconds: int, timed: tuple[int, ...] = ()) -> SteplessJobs:
    found = SteplessJobs()
    for second in range(seconds):
        found.sent(CALLS, 1000.0 + second)
        found.timed(np.array(timed, np.int64))
        found.advance(KEYS, 1000.0 + second)
    return found


def test_collectives_without_own_times_for_a_minute_have_no_steps() -> None:
    assert not _after(int(SAID_AFTER_S)).jobs
    found = _after(int(SAID_AFTER_S) + 1)
    said = found.jobs["llm"]
    assert said.verdict.state is VerdictState.NOT_SURE
    assert said.verdict.evidence == (
        "no repeating step is recognised in job llm, its 8 ranks cannot be judged"
    )
    assert (said.nodes, found.ranks, said.verdict.since) == ({"n0", "n1"}, 8, 1000.0)


def test_nothing_is_found_anew_where_nobody_came_or_left() -> None:
    found = _after(100)
    said = found.jobs["llm"]
    found.sent(CALLS, 1100.0)
    found.advance(KEYS, 1100.0)
    assert found.jobs["llm"] is said
    found.advance({**KEYS, 8: ("n2", "llm", 8)}, 1100.0)
    assert found.jobs["llm"].verdict.evidence.endswith("8 of its 9 ranks cannot be judged")


def test_ranks_whose_own_times_come_are_not_among_them() -> None:
    assert not _after(300, tuple(KEYS)).jobs
    some = _after(300, tuple(range(6)))
    assert some.jobs["llm"].verdict.evidence.endswith("2 of its 8 ranks cannot be judged")
    assert (some.jobs["llm"].nodes, some.ranks) == ({"n1"}, 2)


def test_the_episode_stays_the_same_and_ends_when_steps_are_recognised() -> None:
    found = _after(100)
    episode = found.jobs["llm"].verdict.episode
    found.sent(CALLS, 1100.0)
    found.timed(np.array([*KEYS]))
    found.advance(KEYS, 1100.0)
    assert found.jobs["llm"].verdict.state is VerdictState.RESOLVED
    assert (found.jobs["llm"].verdict.episode, found.ranks) == (episode, 0)
    found.advance(KEYS, 1100.0 + OVER_S)
    assert not found.jobs


def test_a_job_that_sends_nothing_any_more_and_freed_members_are_forgotten() -> None:
    found = _after(100)
    found.advance(KEYS, 1200.0)
    assert found.jobs["llm"].verdict.state is VerdictState.RESOLVED
    found = _after(100)
    found.advance({}, 1100.0)
    assert found.ranks == 0


def test_a_member_with_the_number_of_one_that_left_begins_anew() -> None:
    found = _after(100)
    found.forget(7)
    found.sent(CALLS, 1100.0)
    for job in ("llm", "other"):
        found.advance({**KEYS, 7: ("n9", job, 0)}, 1100.0)
        assert found.ranks == 7
        assert found.jobs["llm"].nodes == {"n0", "n1"}
    assert list(found.jobs) == ["llm"]


def test_a_rank_that_left_is_none_of_its_job_also_where_another_took_its_number() -> None:
    found = _after(100, timed=(7,))
    assert found.jobs["llm"].verdict.evidence.endswith("7 of its 8 ranks cannot be judged")
    found.forget(7)
    found.advance({**KEYS, 7: ("n9", "other", 0)}, 1100.0)
    assert found.jobs["llm"].verdict.evidence.endswith("its 7 ranks cannot be judged")


@given(st.lists(st.tuples(
    st.sampled_from(["sent", "timed", "forget", "join"]),
    st.integers(0, 9), st.integers(0, 40),
), max_size=40))  # fmt: skip
def test_what_is_said_is_what_would_be_found_anew(steps: list[tuple[str, int, int]]) -> None:
    kept, keys, now_s = SteplessJobs(), {}, 1000.0
    since_s: dict[int, float] = {}
    last_s: dict[int, float] = {}
    for what, member, later in steps:
        now_s += later
        if what == "join":
            keys.setdefault(member, (f"n{member // 2}", "ab"[member % 2], member))
        elif what == "forget" and keys.pop(member, None):
            kept.forget(member)
            since_s.pop(member, None)
        elif what == "sent" and member in keys:
            kept.sent({member: (CALL,)}, now_s)
            since_s.setdefault(member, now_s)
            last_s[member] = now_s
        elif what == "timed":
            kept.timed(np.array([member, member]))
            since_s.pop(member, None)
        kept.advance(keys, now_s)
        since_s = {each: at for each, at in since_s.items() if now_s - last_s[each] < SILENT_S}
        listed = {each for each, at in since_s.items() if now_s - at >= SAID_AFTER_S}
        jobs = {keys[each][1] for each in listed}
        assert kept.ranks == len(listed)
        assert {job for job, said in kept.jobs.items() if said.until_s is None} == jobs
        for job in jobs:
            of_job = [each for each in keys if keys[each][1] == job]
            who = f"its {counted(len(of_job), 'rank')}"
            some = [each for each in of_job if each in listed]
            who = who if len(some) == len(of_job) else f"{len(some)} of {who}"
            assert kept.jobs[job].nodes == {keys[each][0] for each in some}
            assert kept.jobs[job].verdict.evidence.endswith(f"{who} cannot be judged")
