"""The replay of recorded collectives: waits follow from arrivals, and nothing counts twice."""

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingero.core.blame import whatif
from ingero.core.blame.whatif import Chain, build_chain, replay_chain
from ingero.core.collectives.columns import Collectives, Recorder, concat, from_columns

OPS = ("AllReduce", "Send", "Recv")


class Recording:
    """Collects rows; times are milliseconds."""

    def __init__(self) -> None:
        self.rows: list[tuple[int, ...]] = []

    def add(
        self, who: int, comm: int, seq: int, entry: float, end: float, *, op: str = "AllReduce",
        peer: int = -1, nranks: int = 2,
    ) -> None:  # fmt: skip
        begin_ns, end_ns = round(entry * 1e6), round(end * 1e6)
        self.rows.append(
            (who, comm, seq, OPS.index(op), who, nranks, peer, begin_ns - 10, end_ns,
             end_ns - begin_ns)
        )  # fmt: skip

    def columns(self) -> Collectives:
        names = ("who", "comm", "seq", "op", "rank", "nranks", "peer", "start_ns", "end_ns",
                 "gpu_duration_ns")  # fmt: skip
        table = np.array(self.rows, np.int64).reshape(-1, len(names))
        recorders = [Recorder(None, None, rank) for rank in range(8)]
        return from_columns({name: table[:, at] for at, name in enumerate(names)}, OPS, recorders)


def three_meetings() -> Collectives:
    """Ranks 0 and 1 meet three times; rank 1 is slower in the second turn, rank 0 in the third."""
    recording = Recording()
    recording.add(0, 7, 0, entry=10, end=12)
    recording.add(1, 7, 0, entry=11, end=12)
    recording.add(0, 7, 1, entry=15, end=20)
    recording.add(1, 7, 1, entry=18, end=20)
    recording.add(0, 7, 2, entry=29, end=30)
    recording.add(1, 7, 2, entry=24, end=30)
    return recording.columns()


def chain_of(columns: Collectives) -> Chain:
    chain = build_chain(columns)
    assert chain is not None
    return chain


def ends(chain: Chain, gap_s: Sequence[float]) -> list[float]:
    return sorted(set(np.round(replay_chain(chain, np.array(gap_s)) * 1e3, 6).tolist()))


def test_gaps_and_transfers_are_read_from_the_records() -> None:
    chain = chain_of(three_meetings())
    assert (chain.gap_s * 1e3).tolist() == pytest.approx([0, 3, 9, 0, 6, 4])
    assert (chain.transfer_s * 1e3).tolist() == pytest.approx([1, 2, 1, 1, 2, 1])
    assert chain.before.tolist() == [-1, 0, 1, -1, 3, 4]
    assert chain.awaits.tolist() == [-1] * 6
    assert [sorted(members) for members in chain.sequence] == [[0, 3], [1, 4], [2, 5]]


def test_a_collective_ends_when_the_last_has_arrived_plus_the_transfer() -> None:
    chain = chain_of(three_meetings())
    assert ends(chain, chain.gap_s.tolist()) == pytest.approx([1, 9, 19])


def test_a_faster_rank_saves_only_until_the_next_one_holds_the_job() -> None:
    chain = chain_of(three_meetings())
    gap_s = chain.gap_s.copy()
    gap_s[4] = 0.0  # rank 1 in the second turn: now rank 0 holds it for 3 ms instead of 6
    assert ends(chain, gap_s.tolist()) == pytest.approx([1, 6, 16])
    gap_s[2] = 0.0  # rank 0 in the third turn
    assert ends(chain, gap_s.tolist()) == pytest.approx([1, 6, 11])


def test_the_order_of_rows_does_not_matter() -> None:
    columns = three_meetings()
    mixed = columns.take(np.array([5, 0, 3, 1, 4, 2]))
    chain = chain_of(mixed)
    assert ends(chain, chain.gap_s.tolist()) == pytest.approx([1, 9, 19])
    assert columns.take(np.argsort([5, 0, 3, 1, 4, 2])).end_ns[chain.rows].shape == (6,)
    assert (mixed.who[chain.rows] == [0, 0, 0, 1, 1, 1]).all()


def test_ranks_that_disagree_about_the_order_cannot_be_replayed() -> None:
    recording = Recording()
    for who, order in ((0, (7, 8)), (1, (8, 7))):
        for at, comm in enumerate(order):
            recording.add(who, comm, 0, entry=10 * at + 1, end=10 * at + 5)
    assert build_chain(recording.columns()) is None


def exchange() -> Collectives:
    """Both ranks send before they receive, which works only if sends are buffered."""
    recording = Recording()
    for who in (0, 1):
        other = 1 - who
        recording.add(who, 7, 0, entry=1 + who, end=2 + who, op="Send", peer=other)
        recording.add(who, 7, 0, entry=3 + 2 * who, end=6, op="Recv", peer=other)
    return recording.columns()


def test_buffered_sends_do_not_wait_but_receives_wait_for_their_send() -> None:
    """The send of rank 0 ends at 1 ms and that of rank 1 as well; receives follow their gaps."""
    chain = chain_of(exchange())
    assert [len(members) for members in chain.sequence] == [1, 1, 1, 1]
    kinds = exchange().op[chain.rows]
    sends, receives = np.flatnonzero(kinds == 1), np.flatnonzero(kinds == 2)
    assert chain.awaits[sends].tolist() == [-1, -1]
    assert chain.awaits[receives].tolist() == sends[::-1].tolist()
    gap_s = chain.gap_s.copy()
    gap_s[sends[1]] = 0.050  # a late send of rank 1 delays what rank 0 receives, not the reverse
    end = replay_chain(chain, gap_s) * 1e3
    transfer = chain.transfer_s * 1e3
    assert end[sends] == pytest.approx([transfer[sends[0]], 50 + transfer[sends[1]]])
    assert end[receives[0]] == pytest.approx(end[sends[1]] + transfer[receives[0]])
    own = end[sends[1]] + gap_s[receives[1]] * 1e3
    assert end[receives[1]] == pytest.approx(own + transfer[receives[1]])


def test_a_send_waits_for_its_receive_where_the_order_allows_it() -> None:
    recording = Recording()
    recording.add(0, 7, 0, entry=1, end=9, op="Send", peer=1)
    recording.add(1, 7, 0, entry=8, end=9, op="Recv", peer=0)
    recording.add(0, 7, 1, entry=12, end=14)
    recording.add(1, 7, 1, entry=13, end=14)
    chain = chain_of(recording.columns())
    assert [len(members) for members in chain.sequence] == [2, 2]
    assert ends(chain, chain.gap_s.tolist()) == pytest.approx([1, 6])


def test_of_a_long_recording_the_last_part_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whatif, "MAX_ROWS", 4)
    chain = chain_of(three_meetings())
    assert three_meetings().seq[chain.rows].tolist() == [1, 2, 1, 2]
    assert ends(chain, chain.gap_s.tolist()) == pytest.approx([2, 12])
    monkeypatch.setattr(whatif, "MAX_ROWS", 6)
    assert len(chain_of(three_meetings()).rows) == 6


def test_nothing_recorded_is_replayed_as_nothing() -> None:
    chain = chain_of(Recording().columns())
    assert replay_chain(chain, chain.gap_s).tolist() == []


gaps = st.lists(st.floats(0, 5), min_size=6, max_size=6)


@given(gaps, st.integers(0, 5), st.floats(0, 5))
def test_a_replay_is_monotone_and_never_gains_more_than_was_taken(
    gap_s: list[float], at: int, saved: float
) -> None:
    chain = chain_of(three_meetings())
    before = replay_chain(chain, np.array(gap_s)).max()
    faster = np.array(gap_s)
    faster[at] = max(0.0, faster[at] - saved)
    after = replay_chain(chain, faster).max()
    assert before - (gap_s[at] - faster[at]) - 1e-9 <= after <= before + 1e-9
    slowest = max(sum(gap_s[:3]), sum(gap_s[3:]))
    assert before >= slowest + chain.transfer_s[:3].sum() - 1e-9


def test_a_receive_whose_send_was_not_recorded_awaits_nothing() -> None:
    columns = exchange()
    lone = Recording()
    lone.add(0, 7, 5, entry=9, end=10, op="Recv", peer=1)
    chain = chain_of(concat([columns, lone.columns()]))
    seq = np.append(columns.seq, 5)[chain.rows]
    assert chain.awaits[seq == 5].tolist() == [-1]
    assert (chain.awaits[seq == 0] >= 0).sum() == 2
