"""When links are slow, who sends to whom, and what a recorded job says about itself."""

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.support.blame_tables import lateness, steps_of
from tests.support.link_rows import OPS, Row, call, columns
from tests.support.shared_job import shared_job

from ingero.contract.verdict import CauseClass
from ingero.core.blame import records
from ingero.core.blame.record_steps import _flag_steps
from ingero.core.blame.recorded.lateness import _all_share, _flags, _meetings
from ingero.core.blame.recorded.link_spells import LinkSpell, find_link_spell
from ingero.core.blame.recorded.loss import Loss
from ingero.core.blame.recorded_job import RecordedJob
from ingero.core.blame.transfer import (
    SlowLink,
    _pairs_apart,
    find_slow_links,
    measure_transfers,
)
from ingero.core.collectives.columns import Collectives, Recorder

STEPS = 240


def recorded(slow: range, *, comms: int = 4, slow_us: float = 500.0) -> tuple[Collectives, Any]:
    """Return pairs of ranks that meet in every step; the third pair is slow in some of them."""
    rows: list[Row] = []
    steps: list[int] = []
    for comm in range(comms):
        for step in range(STEPS):
            transfer = slow_us if comm == 2 and step in slow else 100.0
            rows += call((2 * comm, 2 * comm + 1), 7 + comm, step, transfer)
            steps += [step, step]
    return columns(rows), np.array(steps, np.intp)


@pytest.mark.parametrize(
    ("slow", "begin", "end"),
    [(range(60, 180), 60, 180), (range(0, 30), 0, 30), (range(210, 240), 210, 240)],
)
def test_slow_links_are_found_with_the_steps_in_which_they_are_slow(
    slow: range, begin: int, end: int
) -> None:
    period = np.full(STEPS, 0.010)
    period[slow.start : slow.stop] = 0.0104
    found = find_link_spell(*recorded(slow), period, 0.010)
    assert found is not None
    assert (found.begin, found.end) == (begin, end)
    assert [link.members for link in found.links] == [(4, 5)]
    assert found.links[0].loss_s == pytest.approx(400e-6)
    assert (found.loss.slow_s, found.loss.calm_s) == (pytest.approx(0.0104), pytest.approx(0.010))
    assert found.loss.lost_s == pytest.approx(0.0004)


def test_without_calm_steps_the_transfer_itself_is_the_bound() -> None:
    found = find_link_spell(*recorded(range(STEPS)), np.full(STEPS, 0.010), 0.010)
    assert found is not None
    assert (found.begin, found.end, found.loss.calm_s) == (0, STEPS, None)
    assert found.loss.lost_s == pytest.approx(400e-6)


def test_links_that_are_alike_or_cost_little_are_not_slow() -> None:
    period = np.full(STEPS, 0.010)
    assert find_link_spell(*recorded(range(0)), period, 0.010) is None
    assert find_link_spell(*recorded(range(60, 180), slow_us=129.0), period, 0.010) is None
    assert find_link_spell(*recorded(range(60, 180)), period, 1.0) is None


def test_the_longest_run_of_blocks_of_the_costliest_link_counts() -> None:
    slow = recorded(range(60, 120))
    also = [step in range(180, 210) for step in slow[1].tolist()]
    given, steps = slow
    start = np.where(also & (given.comm == 9), given.end_ns - 500_000, given.start_ns)
    again = columns(
        [
            {"who": int(w), "comm": int(c), "seq": int(q), "op": int(o), "rank": int(r),
             "nranks": 2, "size_bytes": 1000, "start_ns": int(s), "end_ns": int(e)}
            for w, c, q, o, r, s, e in zip(
                given.who, given.comm, given.seq, given.op, given.rank, start, given.end_ns,
                strict=True,
            )
        ]
    )  # fmt: skip
    found = find_link_spell(again, steps, np.full(STEPS, 0.010), 0.010)
    assert found is not None
    assert (found.begin, found.end) == (60, 120)


def test_only_the_steps_asked_for_are_compared() -> None:
    transfers = measure_transfers(*recorded(range(100, 101)))
    assert [len(find_slow_links(transfers, begin, begin + 1, 0.010)) for begin in (99, 100, 101)] \
        == [0, 1, 0]  # fmt: skip
    assert find_slow_links(transfers, 100, 100, 0.010) == ()
    (link,) = find_slow_links(transfers, 100, 101, 0.010)
    assert link.loss_s == pytest.approx(400e-6)
    assert set(link.fast) == {frozenset({0, 1}), frozenset({2, 3}), frozenset({6, 7})}


def sends(transfers_us: Sequence[float], steps: int = 4) -> Collectives:
    """Return pairs of ranks in one communicator, of which the lower one sends."""
    rows: list[Row] = []
    for pair, transfer in enumerate(transfers_us):
        for step in range(steps):
            low, high = 2 * pair, 2 * pair + 1
            end = 1_000_000 * (step + 1)
            shared = {"comm": 7, "seq": step, "nranks": 2 * len(transfers_us), "size_bytes": 1000,
                      "start_ns": end - round(1e3 * transfer), "end_ns": end}  # fmt: skip
            rows.append({**shared, "who": low, "rank": low, "peer": high, "op": OPS.index("Send")})
            rows.append({**shared, "who": high, "rank": high, "peer": low, "op": OPS.index("Recv")})
    return columns(rows)


def test_two_ranks_that_send_to_each_other_are_a_link_of_their_own() -> None:
    given = sends([100, 100, 300, 100])
    transfers = measure_transfers(given, np.zeros(len(given), np.intp))
    assert sorted(transfers.members.values()) == [(0, 1), (2, 3), (4, 5), (6, 7)]
    (link,) = find_slow_links(transfers, 0, 4, 0.010)
    assert (link.members, link.op) == ((4, 5), "Send")
    assert link.ratio == pytest.approx(3.0)


def test_receives_alone_show_a_link_too() -> None:
    """The senders left no records."""
    given = sends([100, 100, 300, 100])
    received = given.take(given.has_op({"Recv"}))
    alone = replace(received, ops=("Recv",), op=np.zeros_like(received.op))
    found = _pairs_apart(alone)
    assert found.ops[int(found.op[0])] == "Recv"
    assert (len(np.unique(found.comm)), set(found.nranks.tolist())) == (4, {2})


@pytest.mark.parametrize(("ranks", "named"), [((4,), [4]), ((4, 5), [4, 5]), ((4, 5, 6), [])])
def test_a_link_names_a_rank_or_both_ends_but_no_whole_node(
    monkeypatch: pytest.MonkeyPatch, ranks: tuple[int, ...], named: list[int]
) -> None:
    given = recorded(range(60, 180))
    found = find_link_spell(*given, np.full(STEPS, 0.010), 0.010)
    assert found is not None
    place = SimpleNamespace(ranks=ranks, text="its link")
    monkeypatch.setattr(records, "locate_link", lambda *_: place)
    workers = SimpleNamespace(steps=tuple(range(STEPS)))
    known: Any = SimpleNamespace(
        collectives=given[0], measured=SimpleNamespace(workers=workers), world=8,
        times=lambda *_: None,
    )  # fmt: skip
    assert [each.rank for each in records._link_culprits(known, found)] == named


def test_where_stages_cost_more_than_a_slow_link_nobody_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    link = SlowLink(7, "AllReduce", 1000, 3.0, 0.1, 0.004, (0, 1), ())
    slow = LinkSpell((link,), 0, 20, Loss(0.1, 0.096, 0.004, 0.001))
    named: Any = [SimpleNamespace(rank=0, cause=CauseClass.NETWORK)]
    monkeypatch.setattr(records, "find_link_spell", lambda *_: slow)
    monkeypatch.setattr(records, "_link_culprits", lambda *_: named)
    for stages_s, cause, culprits in ((0.0, CauseClass.NETWORK, tuple(named)),
                                      (0.02, CauseClass.STRUCTURAL, ())):  # fmt: skip
        monkeypatch.setattr(records, "structural_loss", lambda *_, s=stages_s: s)
        answer = records.blame_records(shared_job(np.zeros((4, 20, 3))), True, "test")
        assert (answer.cause, answer.culprits) == (cause, culprits)
        assert answer.loss_s == pytest.approx(max(0.004, stages_s), rel=0.06)


def job(given: Collectives, **parts: Any) -> Any:
    ranks = tuple(int(w) for w in np.unique(given.who))
    return SimpleNamespace(
        collectives=given, places=parts.get("places"), labels=parts.get("labels", {}),
        world=parts.get("world", len(ranks)),
        measured=SimpleNamespace(
            ranks=ranks, row_step=parts.get("row_step"), row_place=parts.get("row_place")
        ),
    )  # fmt: skip


def test_lateness_is_summed_by_communicator_per_step_without_sends() -> None:
    """Rank 1 is late by 3 s at one place of comm 7 and by 1 s at another, and 2 s in comm 8."""
    rows = [
        {"who": 1, "comm": comm, "seq": n, "op": 0, "rank": 0, "nranks": 2, "size_bytes": 8,
         "start_ns": n, "end_ns": n + 1, "peer": peer}
        for n, (comm, peer) in enumerate([(7, -1), (7, -1), (8, -1), (9, 0), (7, -1), (7, -1)])
    ] + [{"who": 0, "comm": 7, "seq": 0, "op": 0, "rank": 1, "nranks": 2, "size_bytes": 8,
          "start_ns": 0, "end_ns": 1}]  # fmt: skip
    step, place = np.array([0, 0, 0, 0, 5, 1, 0]), np.array([0, 1, 2, 3, 0, -1, 0])
    start = np.full((2, 6, 4), np.nan)
    start[1, 0, :] = [3.0, 1.0, 2.0, 9.0]
    start[1, 5, 0], start[0, 0, 0] = 50.0, 70.0
    tables = lateness(start)
    given = job(columns(rows), places=tables, row_step=step, row_place=place)
    found = RecordedJob.meeting_lateness(given, slice(0, 2), 1)
    assert found == {7: pytest.approx(4.0 / 2), 8: pytest.approx(2.0 / 2)}
    assert RecordedJob.meeting_lateness(given, slice(5, 6), 1) == {7: pytest.approx(50.0)}
    assert RecordedJob.meeting_lateness(given, slice(0, 2), 0) == {7: pytest.approx(35.0)}
    assert RecordedJob.meeting_lateness(job(columns(rows)), slice(0, 2), 1) == {}


def test_communicators_ranks_and_times_have_names() -> None:
    given = job(columns(call(range(10), 7, 0, 100.0)), labels={7: "dp"}, world=112,
                row_step=np.array([0, 0, 1, 1, 2, 2, -1, -1, 3, 3]))  # fmt: skip
    eight = ", ".join(str(100 + n) for n in range(8))
    assert RecordedJob.comm_name(given, 7) == f"dp (ranks {eight}, …)"
    few = job(columns(call((0, 3), 8, 0, 100.0)))
    assert RecordedJob.comm_name(few, 8).endswith(" (ranks 100, 103)")
    assert RecordedJob.comm_name(few, 8).startswith("communicator ")
    assert RecordedJob.name(few, 1) == "rank 103"
    missing = RecordedJob.missing_ranks(given)
    assert missing == [*range(100), 110, 111], "recorders 100 to 109 left records"
    given.collectives.end_ns[:] = np.arange(10) * 10**9
    assert RecordedJob.times(given, 1, 3) == (2.0, 5.0)


def test_ranks_without_a_number_are_called_by_their_node() -> None:
    given = columns(call((0, 1), 7, 0, 100.0))
    unnamed = SimpleNamespace(
        recorders=[Recorder(None, "gpu-7", None), Recorder(None, None, None)], who=given.who
    )
    nameless = job(given)
    nameless.collectives = unnamed
    assert [RecordedJob.name(nameless, w) for w in (0, 1)] == ["gpu-7", "recorder 1"]
    assert RecordedJob.missing_ranks(nameless) == []


def test_light_calls_before_a_step_are_its_flags() -> None:
    sizes = [8, 10**9, 8, 8, 8]
    rows = [
        {"who": who, "comm": 7, "seq": n, "op": 0, "rank": 0, "nranks": 2, "size_bytes": size,
         "start_ns": 100 * n, "end_ns": 100 * n + 1}
        for who in (0, 1) for n, size in enumerate(sizes)
    ]  # fmt: skip
    step = np.array([-1, -1, 4, -1, 5, -1, -1, -1, 6, -1])
    found = _flag_steps(columns(rows), step)
    assert found.tolist() == [4, -1, -1, 5, -1, 6, -1, 6, -1, -1]
    assert _flag_steps(columns([]), np.empty(0, np.int64)).tolist() == []


@pytest.mark.parametrize(("flagged", "steps", "is_kept"), [(2, 100, True), (2, 101, False)])
def test_flags_must_come_every_fifty_steps(flagged: int, steps: int, is_kept: bool) -> None:
    rows = [row for n in range(flagged) for row in call((0, 1), 7, n, 1.0)]
    narrow = call((0,), 8, 9, 1.0)
    given = columns(rows + narrow)
    measured: Any = SimpleNamespace(
        ranks=(0, 1), flag_step=np.array([0, 0, 1, 1, 2]),
        workers=steps_of(np.ones((2, steps)), np.ones(steps)),
    )  # fmt: skip
    assert _flags(given, measured).tolist() == ([0, 1, 2, 3] if is_kept else [])


def test_ranks_meet_everywhere_or_in_groups() -> None:
    everywhere = columns([*call((0, 1, 2), 7, 0, 1.0), *call((0, 1, 2), 8, 0, 1.0)])
    assert _all_share(everywhere, np.arange(6), 3)
    groups = columns([*call((0, 1, 2), 7, 0, 1.0), *call((0, 1), 8, 0, 1.0)])
    assert not _all_share(groups, np.arange(5), 3)
    measured: Any = SimpleNamespace(
        ranks=(0, 1, 2), row_step=np.zeros(5, np.intp), row_place=np.array([0, 0, 0, 1, 1])
    )
    group, op = _meetings(groups, measured, np.arange(5), (3, 3))
    assert group.tolist() == [[0, 1, -1], [0, 1, -1], [0, -1, -1]]
    assert op.tolist() == [[0, 0, -1], [0, 0, -1], [0, -1, -1]]
