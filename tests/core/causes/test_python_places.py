"""Where a thread spends more time than its peers: locks, readers, garbage collection, Python."""

import pytest

from ingero.contract.causes import CauseKind
from ingero.core.causes.profile import Doing, Frame, Other, Profile, Sample, add_up
from ingero.core.causes.python_places import (
    Collections,
    compare_collections,
    compare_interpreter,
    compare_places,
)
from ingero.core.causes.ranking import Lateness

LATE = Lateness(share=0.5)
STANDARD = "/usr/lib/python3.11/queue.py"
TORCH = "/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py"
STEP = Frame("/job/train.py", "step", 88)
COMPUTE = (Frame("/job/train.py", "forward", 20),)
SYNC = (Frame("/job/train.py", "main", 9),)


def profile(*parts: tuple[int, Sample]) -> Profile:
    return add_up(sample for count, sample in parts for _ in range(count))


HEALTHY = profile((300, Sample(Doing.RUNS, COMPUTE)), (200, Sample(Doing.WAITS, SYNC)))


def places(mine: Profile, *peers: Profile, lateness: Lateness = LATE) -> list[str]:
    found = compare_places((mine, 1.0), [(peer, 1.0) for peer in peers], lateness)
    return [each.text for each in found]


def test_a_lock_names_the_line_that_waits_and_what_another_thread_does_meanwhile() -> None:
    holder = Other("thread `saver`", Doing.SLEEPS, (Frame("/job/store.py", "write_index", 30),))
    mine = profile(
        (200, Sample(Doing.RUNS, COMPUTE)),
        (300, Sample(Doing.LOCK, (STEP,), others=(holder,))),
    )
    assert places(mine, HEALTHY, HEALTHY) == [
        "waits for a lock 60 % of the time in `step` (train.py:88), peers 0 %; meanwhile "
        "thread `saver` sleeps in `write_index` (store.py:30)"
    ]


def test_a_thread_that_always_does_the_same_explains_no_wait() -> None:
    other = Other("another thread", Doing.SLEEPS, (Frame("/job/log.py", "flush", 3),))
    mine = profile(
        (200, Sample(Doing.WAITS, SYNC, others=(other,))),
        (300, Sample(Doing.LOCK, (STEP,), others=(other,))),
    )
    assert places(mine, HEALTHY) == [
        "waits for a lock 60 % of the time in `step` (train.py:88), peers 0 %"
    ]


def test_a_slow_reader_names_queue_caller_and_reading_thread() -> None:
    frames = (
        Frame(STANDARD, "get", 171),
        Frame(TORCH, "_try_get_data", 1131),
        Frame(TORCH, "__next__", 630),
        Frame("/job/train.py", "main", 212),
    )
    reader = Other("a worker process", Doing.READS, (Frame("/job/data.py", "fill", 31),))
    mine = profile(
        (200, Sample(Doing.RUNS, COMPUTE)),
        (300, Sample(Doing.LOCK, frames, others=(reader,))),
    )
    (found,) = compare_places((mine, 1.0), [(HEALTHY, 1.0)], LATE)
    assert found.kind is CauseKind.READER
    assert found.text == (
        "waits 60 % of the time in `_try_get_data` (dataloader.py:1131), called at train.py:212, "
        "peers 0 %; meanwhile a worker process reads in `fill` (data.py:31)"
    )


def test_a_reader_counts_before_the_process_that_it_reads_from() -> None:
    writer = Other("a worker process", Doing.SLEEPS, (Frame("/job/source.py", "produce", 6),))
    reader = Other("another thread", Doing.READS, (Frame("/job/data.py", "fill", 31),))
    mine = profile(
        (200, Sample(Doing.RUNS, COMPUTE)),
        (20, Sample(Doing.LOCK, (STEP,), others=(writer,))),
        (280, Sample(Doing.LOCK, (STEP,), others=(reader, writer))),
    )
    (found,) = compare_places((mine, 1.0), [(HEALTHY, 1.0)], LATE)
    assert found.kind is CauseKind.READER
    assert found.text.endswith("meanwhile another thread reads in `fill` (data.py:31)")


def test_garbage_collection_is_told_in_steps() -> None:
    mine = profile(
        (400, Sample(Doing.RUNS, COMPUTE)),
        (100, Sample(Doing.RUNS, COMPUTE, is_collecting=True)),
    )
    runs = Collections(count=5, seconds=4.5, step_ms=72.0)
    found = compare_collections(mine, [HEALTHY], runs, Lateness(share=0.2))
    assert found is not None
    assert found.explains == 1.0
    assert found.text == ("garbage collection, 180 ms every 10 steps, 20 % of the time, peers 0 %")
    unknown = compare_collections(mine, [HEALTHY], Collections(count=5, seconds=4.5), LATE)
    assert unknown is not None
    assert "180 ms every 900 ms" in unknown.text


@pytest.mark.parametrize(("period", "steps"), [(12, 12), (13, 13), (20, 10), (None, 10)])
def test_the_period_of_stalls_is_told_where_the_collections_agree(
    period: int | None, steps: int
) -> None:
    mine = profile(
        (400, Sample(Doing.RUNS, COMPUTE)),
        (100, Sample(Doing.RUNS, COMPUTE, is_collecting=True)),
    )
    runs = Collections(count=5, seconds=4.5, step_ms=72.0, period=period)
    found = compare_collections(mine, [HEALTHY], runs, Lateness(share=0.2))
    assert found is not None and f"180 ms every {steps} steps" in found.text


def test_peers_that_collect_as_much_explain_nothing() -> None:
    mine = profile(
        (400, Sample(Doing.RUNS, COMPUTE)),
        (100, Sample(Doing.RUNS, COMPUTE, is_collecting=True)),
    )
    assert compare_collections(mine, [mine, mine], Collections(), LATE) is None


def test_waits_for_the_interpreter_lock_count_together() -> None:
    other = Other("another thread", Doing.RUNS, (Frame("/job/zip.py", "compress", 4),))
    mine = profile(
        (300, Sample(Doing.RUNS, COMPUTE)),
        (100, Sample(Doing.INTERPRETER, COMPUTE, others=(other,))),
        (100, Sample(Doing.INTERPRETER, SYNC, others=(other,))),
    )
    found = compare_interpreter(mine, [HEALTHY], LATE)
    assert found is not None
    assert found.kind is CauseKind.INTERPRETER_LOCK
    assert found.text == (
        "waits for the interpreter lock 40 % of the time, peers 0 %; meanwhile "
        "another thread runs in `compress` (zip.py:4)"
    )
    assert places(mine, HEALTHY) == []


def test_more_time_in_a_function_than_its_peers_is_named() -> None:
    tokenize = (Frame("/job/data.py", "tokenize", 33), *COMPUTE)
    mine = profile((300, Sample(Doing.RUNS, COMPUTE)), (200, Sample(Doing.RUNS, tokenize)))
    assert places(mine, HEALTHY) == ["runs `tokenize` (data.py:33) 40 % of the time, peers 0 %"]


def test_a_thread_without_a_cpu_does_not_run() -> None:
    """The kernel shows a thread that waits for a CPU as running; that is another cause."""
    mine = profile((500, Sample(Doing.RUNS, COMPUTE)))
    assert compare_places((mine, 0.5), [(HEALTHY, 1.0)], LATE) == []
    assert len(compare_places((mine, 1.0), [(HEALTHY, 1.0)], LATE)) == 1


def test_a_wait_that_peers_have_too_is_no_cause() -> None:
    assert places(HEALTHY, HEALTHY, HEALTHY) == []


def test_without_peers_only_waits_that_explain_half_are_told() -> None:
    mine = profile((200, Sample(Doing.RUNS, COMPUTE)), (300, Sample(Doing.LOCK, (STEP,))))
    assert places(mine) == [
        "waits for a lock 60 % of the time in `step` (train.py:88), peers unknown"
    ]
    assert places(mine, lateness=Lateness()) == []
    assert places(HEALTHY) == []  # it waits for its GPU or its peers, as any rank does


def test_a_rank_that_waits_for_its_peers_a_little_longer_is_healthy() -> None:
    mine = profile((130, Sample(Doing.RUNS, COMPUTE)), (300, Sample(Doing.SLEEPS, SYNC)))
    peer = profile((95, Sample(Doing.RUNS, COMPUTE)), (120, Sample(Doing.SLEEPS, SYNC)))
    assert places(mine, peer, peer) == []


def test_few_samples_say_nothing() -> None:
    mine = profile((30, Sample(Doing.LOCK, (STEP,))))
    assert places(mine, HEALTHY) == []
    assert compare_collections(mine, [], Collections(), LATE) is None


def test_names_of_the_job_cannot_break_a_text() -> None:
    odd = (Frame("/job/{share}\n.py", "f{0}\x1b", 1),)
    mine = profile((500, Sample(Doing.LOCK, odd)))
    assert places(mine, HEALTHY) == [
        "waits for a lock 100 % of the time in `f0` (share.py:1), peers 0 %"
    ]


def test_without_frames_a_wait_is_told_without_its_place() -> None:
    mine = profile((400, Sample(Doing.RUNS, ())), (100, Sample(Doing.LOCK, ())))
    calm = profile((450, Sample(Doing.RUNS, ())), (50, Sample(Doing.WAITS, ())))
    assert places(mine, calm, calm) == ["waits for a lock 20 % of the time, peers 0 %"]
    assert places(profile((500, Sample(Doing.RUNS, ()))), calm) == [], "running is no place"


def test_waits_without_frames_are_compared_with_all_waits_of_peers() -> None:
    mine = profile((350, Sample(Doing.RUNS, ())), (150, Sample(Doing.LOCK, ())))
    peer = profile((350, Sample(Doing.RUNS, COMPUTE)), (150, Sample(Doing.LOCK, SYNC)))
    assert places(mine, peer, peer) == []
