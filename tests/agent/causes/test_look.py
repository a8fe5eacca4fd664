"""Real processes, each slow for one reason: the look names it with numbers, or says nothing.

Two healthy processes are the peers. Only what is observed counts: no process is told about a look.
"""

import re
import threading
from collections.abc import Callable
from itertools import cycle
from unittest.mock import Mock

import msgspec
import pytest
from tests.support.apart import Apart

from ingero.agent.causes import look as look_module
from ingero.agent.causes import rivals, sampling
from ingero.agent.causes.gpu_signals import GpuSignals
from ingero.agent.causes.look import RankProcess, Subject, look
from ingero.agent.causes.rivals import choose_rival
from ingero.contract.causes import Ask, CauseKind, PeerValue, Signal
from ingero.core.causes.ranking import Difference
from ingero.errors import Unavailable
from ingero.fleet.causes.book import MAX_ASKS

LATE = 0.4
STEP_MS = 30.0
Start = Callable[..., int]


# the other ranks of the job, as Fleet knows them; those here share two CPUs with the test
KNOWN = {str(Signal.RUNQUEUE_SHARE): PeerValue(0.02, 0.005, 7)}


def ask(late: float = LATE, peers: dict[str, PeerValue] | None = None) -> Ask:
    return Ask(
        episode="e",
        job="j",
        rank=0,
        cause_class="host",
        late=late,
        step_ms=STEP_MS,
        peers=peers or {},
    )


@pytest.fixture
def peers(start: Start) -> list[RankProcess]:
    return [RankProcess(start("healthy"), "j", rank) for rank in (1, 2)]


def causes(
    pid: int,
    peers: list[RankProcess],
    late: float = LATE,
    known: dict[str, PeerValue] | None = None,
) -> list[Difference]:
    rank = RankProcess(pid, "j", 0)
    found = look(Subject(ask(late, known), rank, peers, GpuSignals()), threading.Event(), 4.0)
    assert found is not None
    return found


def best_cause(
    pid: int,
    peers: list[RankProcess],
    late: float = LATE,
    known: dict[str, PeerValue] | None = None,
) -> Difference:
    """Look until something is found, as Fleet asks again after "unknown"."""
    found = next(filter(None, (causes(pid, peers, late, known) for _ in range(MAX_ASKS))), [])
    assert found
    return found[0]


def test_a_lock_held_by_another_thread(start: Start, peers: list[RankProcess]) -> None:
    best = best_cause(start("lock"), peers)
    assert best.kind is CauseKind.LOCK
    assert re.fullmatch(
        r"waits for a lock \d\d % of the time in `step` \(rank_stand_in.py:\d+\), peers \d %; "
        r"meanwhile another thread sleeps in `write_index` \(rank_stand_in.py:\d+\)",
        best.text,
    )


def test_a_slow_reader(start: Start, peers: list[RankProcess]) -> None:
    best = best_cause(start("reader"), peers)
    assert best.kind is CauseKind.READER
    assert re.fullmatch(
        r"waits \d\d % of the time in `next_batch` \(rank_stand_in.py:\d+\), peers \d %; "
        r"meanwhile another thread reads in `fill` \(rank_stand_in.py:\d+\)",
        best.text,
    )


def test_garbage_collection_of_many_objects(start: Start, peers: list[RankProcess]) -> None:
    best = best_cause(start("gc"), peers, late=0.15)
    assert best.kind is CauseKind.GC
    length = re.fullmatch(
        r"garbage collection, ([\d.]+) ms every \d+ steps, \d+ % of the time, peers \d %", best.text
    )
    assert length is not None
    assert float(length[1]) >= 5


def test_another_thread_that_runs_python(start: Start, peers: list[RankProcess]) -> None:
    best = best_cause(start("interpreter"), peers, late=0.2)
    assert best.kind is CauseKind.INTERPRETER_LOCK
    assert re.match(r"waits for the interpreter lock \d\d % of the time, peers \d %", best.text)


def test_a_process_that_takes_the_cpu(start: Start) -> None:
    peers = [RankProcess(start("healthy", cpu=0), "j", rank) for rank in (1, 2)]
    late, _ = start("healthy", cpu=1), start("hog", cpu=1)
    best = best_cause(late, peers, late=0.2, known=KNOWN)
    assert best.kind is CauseKind.CPU
    assert re.fullmatch(
        r"waits for a CPU \d\d % of the time, peers 2.0 %, behind `hog` "
        r"\(process \d+, in the same cgroup\)",
        best.text,
    )


@pytest.mark.parametrize(
    ("waits", "rival"),
    [
        ({7: 100, 9: 50}, 9),  # its own threads wait for each other, too
        ({7: 100, 9: 20}, 7),
        ({7: 40, 8: 25, 9: 25, 10: 10}, None),
        ({}, None),
    ],
)
def test_who_takes_the_cpu_must_stand_out(waits: dict[int, int], rival: int | None) -> None:
    assert choose_rival(7, waits) == rival


@pytest.mark.parametrize("has_probes", [True, False])
def test_a_neighbour_is_named_where_threads_of_the_rank_take_turns_with_it(
    start: Start, monkeypatch: pytest.MonkeyPatch, has_probes: bool
) -> None:
    if not has_probes:
        monkeypatch.setattr(rivals, "_probe", lambda *_: None)
    late, hog = start("crowded", cpu=1), start("hog", cpu=1)
    text = rivals.find_rival(late, threading.Event())
    assert text == f"`hog` (process {hog}, in the same cgroup)"


def test_a_busy_process_on_another_cpu_is_not_in_the_way(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rivals, "_probe", lambda *_: None)
    late, _ = start("crowded", cpu=1), start("hog", cpu=0)
    assert rivals.find_rival(late, threading.Event()) == ""


def test_threads_of_the_rank_are_named_where_nobody_else_is(start: Start) -> None:
    assert rivals.find_rival(start("crowded", cpu=1), threading.Event()) == "its own threads"


def test_a_cpu_quota(start: Start, peers: list[RankProcess], apart: Apart) -> None:
    late, limited = start("healthy"), apart.limited("limited", 10_000)
    if limited is None:
        pytest.skip("no cgroup with a CPU quota can be made here")
    (limited / "cgroup.procs").write_text(str(late))
    best = best_cause(late, peers)
    assert best.kind is CauseKind.QUOTA
    assert re.fullmatch(
        r"stopped \d\d % of the time by the CPU quota of its cgroup, peers 0.0 %", best.text
    )


def test_a_healthy_process_is_unknown(start: Start, peers: list[RankProcess]) -> None:
    assert causes(start("healthy"), peers) == []


def test_a_gpu_that_slows_down_now_and_then_is_seen_by_its_mean_clock(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may be as fast as ever in the moment in which a look ends."""
    monkeypatch.setattr(look_module, "ENOUGH", 40)
    monkeypatch.setattr(look_module, "GPU_EVERY_S", 0.1)
    readings = cycle(
        [
            {Signal.SM_CLOCK: 1200.0, Signal.POWER: 400.0, Signal.THROTTLE: 4.0},
            {Signal.SM_CLOCK: 1980.0, Signal.POWER: 600.0, Signal.THROTTLE: 0.0},
        ]
    )
    reader = Mock(read=Mock(side_effect=lambda *_: next(readings)))
    known = {"sm_clock": PeerValue(1980.0, 5.0, 7), "power": PeerValue(610.0, 5.0, 7)}
    question = msgspec.structs.replace(ask(0.2, known), cause_class="compute")
    rank = RankProcess(start("healthy"), "j", 0)
    found = look(Subject(question, rank, [], reader), threading.Event(), 0.75)
    assert found is not None
    assert [each.kind for each in found] == [CauseKind.GPU_CLOCK]
    assert reader.read.call_count >= 4
    assert re.fullmatch(
        r"SM clock 1[3-7]\d\d MHz, peers 1980 MHz \(power cap, [45]\d\d W, peers 610 W\)",
        found[0].text,
    )


def test_a_lock_is_named_without_python_frames_and_unknown_says_why(
    start: Start, peers: list[RankProcess], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with an interpreter whose layout is not known."""

    def refuse(_: int) -> None:
        raise Unavailable("its interpreter is of another version")

    monkeypatch.setattr(sampling, "read_python", refuse)
    best = best_cause(start("lock"), peers)
    assert re.fullmatch(r"waits for a lock \d\d % of the time, peers \d %", best.text)
    (unknown,) = causes(start("healthy"), peers)
    assert (unknown.kind, unknown.text) == (
        CauseKind.UNKNOWN,
        "its Python frames were not read, because its interpreter is of another version",
    )


@pytest.mark.parametrize(("problem", "kind"), [("", CauseKind.CPU), ("no", CauseKind.UNKNOWN)])
def test_without_frames_waits_for_a_cpu_that_nobody_takes_are_a_guess(
    start: Start, monkeypatch: pytest.MonkeyPatch, problem: str, kind: CauseKind
) -> None:
    class Sampler(sampling.ThreadSampler):
        def __init__(self, pid: int, *, with_others: bool) -> None:
            super().__init__(pid, with_others=with_others)
            self.problem = problem

    monkeypatch.setattr(look_module, "ThreadSampler", Sampler)
    monkeypatch.setattr(look_module, "find_rival", lambda *_: "")
    peers = [RankProcess(start("healthy", cpu=0), "j", rank) for rank in (1, 2)]
    late, _ = start("healthy", cpu=1), start("hog", cpu=1)
    assert best_cause(late, peers, late=0.2, known=KNOWN).kind is kind


def test_a_process_that_ended_gives_no_answer(peers: list[RankProcess]) -> None:
    gone = RankProcess(2**22 - 1, "j", 0)
    assert look(Subject(ask(), gone, peers, GpuSignals()), threading.Event(), 1.0) is None
