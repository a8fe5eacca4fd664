"""Exchanges that were recorded as sends and receives, read as one collective."""

from dataclasses import replace

import numpy as np

from ingero.core.collectives.columns import UNKNOWN, Collectives, Recorder, from_columns
from ingero.core.collectives.pairs.exchanges import _unshifted, join_exchanges

MS = 1_000_000
OPS = ("AllReduce", "Recv", "Send")
MEMBERS, CLOCKS_NS = (0, 1, 2), (0, 70 * MS, -40 * MS)
LATE_NS = 5 * MS


def _job(exchanges: int = 2, peers: tuple[int, ...] = MEMBERS) -> Collectives:
    """Return two steps of three ranks; rank 2 is late to the first exchange of each.

    Sends and receives are recorded for 0.1 ms from the moment at which their rank is ready.
    """
    rows = []
    for rank in MEMBERS:
        for step in range(2):
            at = 1_000 * MS + step * 50 * MS + CLOCKS_NS[rank]
            rows.append((rank, 1, step, 0, 3, UNKNOWN, 64, at - MS, at, MS))
            for nth in range(exchanges):
                began = at + 2 * MS + nth * 10 * MS + (LATE_NS if rank == 2 and not nth else 0)
                for peer in peers:
                    for op in (1, 2) if peer != rank else ():
                        rows.append(
                            (
                                rank,
                                2,
                                UNKNOWN,
                                op,
                                3,
                                peer,
                                32,
                                began - MS,
                                began + MS // 10,
                                MS // 10,
                            )
                        )
    names = "who comm seq op nranks peer size_bytes start_ns end_ns gpu_duration_ns".split()
    columns = dict(zip(names, np.array(rows).T, strict=True))
    columns["rank"] = columns["who"]
    return from_columns(columns, OPS, tuple(Recorder("job", f"n{r}", r) for r in MEMBERS))


def _exchanges(columns: Collectives) -> Collectives:
    return columns.take(columns.has_op({"AllToAll"}))


def test_an_exchange_is_one_row_that_ends_when_the_last_member_is_ready() -> None:
    found = _exchanges(join_exchanges(_job()))
    assert len(found) == 3 * 2 * 2
    assert set(found.peer.tolist()) == {UNKNOWN} and set(found.size_bytes.tolist()) == {64}
    for seq in np.unique(found.seq):
        same = found.take(found.seq == seq)
        assert sorted(same.who.tolist()) == [0, 1, 2]
        ends = same.end_ns - np.array(CLOCKS_NS)[same.who]
        assert len(set(ends.tolist())) == 1
    first = found.take(found.seq % (1 << 16) == 0)
    waited = {int(w): int(d) for w, d in zip(first.who, first.gpu_duration_ns, strict=True)}
    assert waited == {0: LATE_NS + MS // 10, 1: LATE_NS + MS // 10, 2: MS // 10}


def test_times_left_over_from_the_exchange_before_do_not_count() -> None:
    job = _job()
    stale = (job.who == 1) & (job.peer == 0)
    untimed = (job.who == 0) & (job.peer == 1)
    spoilt = replace(
        job,
        end_ns=np.where(stale, job.end_ns - 9 * MS, job.end_ns),
        gpu_duration_ns=np.where(untimed, UNKNOWN, job.gpu_duration_ns),
    )
    expected, found = _exchanges(join_exchanges(job)), _exchanges(join_exchanges(spoilt))
    assert found.end_ns.tolist() == expected.end_ns.tolist()
    assert found.gpu_duration_ns.tolist() == expected.gpu_duration_ns.tolist()


def test_members_that_recorded_different_numbers_of_exchanges_are_not_matched() -> None:
    job = _job()
    first_ns = job.start_ns[(job.who == 1) & (job.peer >= 0)].min()
    found = _exchanges(join_exchanges(job.take(~((job.who == 1) & (job.start_ns == first_ns)))))
    step = found.take(found.start_ns < 1_040 * MS + np.array(CLOCKS_NS)[found.who])
    assert len(np.unique(step.seq)) == len(step) == 5
    rest = found.take(found.start_ns > 1_040 * MS + np.array(CLOCKS_NS)[found.who])
    assert len(np.unique(rest.seq)) == 2


def test_what_is_no_exchange_between_all_stays_as_it_is() -> None:
    job = _job()
    ring = job.take((job.peer < 0) | ((job.op == 2) == ((job.peer - job.rank) % 3 == 1)))
    pair = job.take((job.who < 2) & (job.peer < 2))
    apart = job.take(job.peer >= 0)  # without a collective that all share, clocks would decide
    untimed = replace(job, gpu_duration_ns=np.where(job.who == 1, UNKNOWN, job.gpu_duration_ns))
    for columns in (ring, pair, apart, untimed):
        assert join_exchanges(columns) is columns


def test_a_call_that_was_not_recorded_shifts_no_later_exchange() -> None:
    job = _job(exchanges=4)
    calls = np.flatnonzero((job.who == 1) & (job.comm == 2))
    for lost in calls[[0, 5]]:  # the first call of an exchange, and one within
        kept = np.arange(len(job)) != lost
        found = _exchanges(join_exchanges(job.take(kept)))
        expected = _exchanges(join_exchanges(job))
        assert found.end_ns.tolist() == expected.end_ns.tolist()


def test_times_of_the_following_exchange_are_moved_back() -> None:
    """The last exchange before a meeting cannot begin after it: its times are the next one's."""
    met = np.array([0, 100, 200, 10_000])
    meeting = np.repeat([0, 1, 2], 2)
    right = np.array([10, 20, 110, 120, 210, 220])
    slipped = np.array([10, 20, 120, 210, 220, 310])
    for given, expected in ((right, right), (slipped, [10, 20, 20, 120, 220, 310])):
        entry, end = _unshifted(given, given + 5, meeting, met)
        assert entry.tolist() == list(expected)
        assert (end - entry == 5).all()
