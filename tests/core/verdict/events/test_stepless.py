"""Jobs in which no repeating step is recognised are said to be unjudged."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ingero.contract.collective import CollectiveRecord, CollectiveSource
from ingero.contract.verdict import VerdictState
from ingero.core.counted import counted
from ingero.core.verdict.events.stepless import (
    OVER_S,
    SAID_AFTER,
    SAID_AFTER_S,
    SILENT_S,
    SteplessJobs,
)

CALL = CollectiveRecord(
    job="llm", node="n0", global_rank=0, comm=1, seq=1, op="AllReduce", rank=0, nranks=8,
    peer=None, datatype="float32", reduce_op="sum", size_bytes=1 << 20, stream=None,
    start_ns=1, end_ns=2, gpu_duration_ns=1, source=CollectiveSource.PLUGIN,
)  # fmt: skip
KEYS = {number: (f"n{number // 4}", "llm", number) for number in range(8)}
CALLS = dict.fromkeys(KEYS, (CALL,))


def _after(seconds: int, timed: tuple[int, ...] = (), every: int = 1) -> SteplessJobs:
    found = SteplessJobs()
    for second in range(0, seconds, every):
        found.sent(CALLS, 1000.0 + second)
        found.timed(np.array(timed, np.int64))
        found.advance(KEYS, 1000.0 + second)
    return found


def test_collectives_without_own_times_for_minutes_have_no_steps() -> None:
    assert not _after(int(SAID_AFTER_S)).jobs
    found = _after(int(SAID_AFTER_S) + 1)
    said = found.jobs["llm"]
    assert said.verdict.state is VerdictState.NOT_SURE
    assert said.verdict.evidence == (
        "no repeating step is recognised in job llm, its 8 ranks cannot be judged"
    )
    assert (said.nodes, found.ranks, said.verdict.since) == ({"n0", "n1"}, 8, 1000.0)


def test_nothing_is_found_anew_where_nobody_came_or_left() -> None:
    found = _after(400)
    said = found.jobs["llm"]
    found.sent(CALLS, 1400.0)
    found.advance(KEYS, 1400.0)
    assert found.jobs["llm"] is said
    found.advance({**KEYS, 8: ("n2", "llm", 8)}, 1400.0)
    assert found.jobs["llm"].verdict.evidence.endswith("8 of its 9 ranks cannot be judged")


def test_few_collectives_show_nothing_however_long_they_take() -> None:
    """Steps of five seconds with one collective each are recognised after four minutes."""
    assert not _after(5 * SAID_AFTER - 5, every=5).jobs
    assert _after(5 * SAID_AFTER, every=5).jobs


def test_ranks_whose_own_times_come_are_not_among_them() -> None:
    assert not _after(600, tuple(KEYS)).jobs
    some = _after(600, tuple(range(6)))
    assert some.jobs["llm"].verdict.evidence.endswith("2 of its 8 ranks cannot be judged")
    assert (some.jobs["llm"].nodes, some.ranks) == ({"n1"}, 2)


def test_the_episode_stays_the_same_and_ends_when_steps_are_recognised() -> None:
    found = _after(400)
    episode = found.jobs["llm"].verdict.episode
    found.sent(CALLS, 1400.0)
    found.timed(np.array([*KEYS]))
    found.advance(KEYS, 1400.0)
    assert found.jobs["llm"].verdict.state is VerdictState.RESOLVED
    assert (found.jobs["llm"].verdict.episode, found.ranks) == (episode, 0)
    found.advance(KEYS, 1400.0 + OVER_S)
    assert not found.jobs


def test_a_job_that_sends_nothing_any_more_and_freed_members_are_forgotten() -> None:
    found = _after(400)
    found.advance(KEYS, 1500.0)
    assert found.jobs["llm"].verdict.state is VerdictState.RESOLVED
    found = _after(400)
    found.advance({}, 1400.0)
    assert found.ranks == 0


def test_a_member_with_the_number_of_one_that_left_begins_anew() -> None:
    found = _after(400)
    found.forget(7)
    found.sent(CALLS, 1400.0)
    for job in ("llm", "other"):
        found.advance({**KEYS, 7: ("n9", job, 0)}, 1400.0)
        assert found.ranks == 7
        assert found.jobs["llm"].nodes == {"n0", "n1"}
    assert list(found.jobs) == ["llm"]


def test_a_rank_that_left_is_none_of_its_job_also_where_another_took_its_number() -> None:
    found = _after(400, timed=(7,))
    assert found.jobs["llm"].verdict.evidence.endswith("7 of its 8 ranks cannot be judged")
    found.forget(7)
    found.advance({**KEYS, 7: ("n9", "other", 0)}, 1400.0)
    assert found.jobs["llm"].verdict.evidence.endswith("its 7 ranks cannot be judged")


@given(st.lists(st.tuples(
    st.sampled_from([*["all sent"] * 9, "sent", "timed", "forget", "join"]),
    st.integers(0, 5), st.sampled_from([1, 20, 55, 58, 59, 60]),
), min_size=8, max_size=40))  # fmt: skip
def test_what_is_said_is_what_would_be_found_anew(steps: list[tuple[str, int, int]]) -> None:
    kept, now_s = SteplessJobs(), 1000.0
    keys = {member: (f"n{member // 2}", "ab"[member % 2], member) for member in range(4)}
    since_s: dict[int, float] = {}
    last_s: dict[int, float] = {}
    calls: dict[int, int] = {}
    for what, member, later in steps:
        now_s += later
        if what == "join":
            keys.setdefault(member, (f"n{member // 2}", "ab"[member % 2], member))
        elif what == "forget" and keys.pop(member, None):
            kept.forget(member)
            since_s.pop(member, None)
        elif what == "timed":
            kept.timed(np.array([member, member]))
            since_s.pop(member, None)
        sent = {"all sent": keys.keys(), "sent": keys.keys() & {member}}.get(what, set())
        kept.sent(dict.fromkeys(sent, (CALL,) * (SAID_AFTER // 5)), now_s)
        for each in sent:
            calls[each] = SAID_AFTER // 5 + (calls[each] if each in since_s else 0)
            since_s.setdefault(each, now_s)
            last_s[each] = now_s
        kept.advance(keys, now_s)
        since_s = {each: at for each, at in since_s.items() if now_s - last_s[each] < SILENT_S}
        is_long = {each for each, at in since_s.items() if now_s - at >= SAID_AFTER_S}
        listed = {each for each in is_long if calls[each] >= SAID_AFTER}
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
