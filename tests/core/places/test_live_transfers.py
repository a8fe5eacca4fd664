"""Which link became slow, from the transfers of communicators as they come."""

import math
from collections.abc import Mapping

import numpy as np
import pytest

from ingero.core.collectives.columns import Collectives, Recorder, from_columns
from ingero.core.collectives.matching import match_collectives
from ingero.core.places import live_transfers
from ingero.core.places.live_transfers import FRESH_S, LEARNED, LiveTransfers

MS = 1_000_000
END_S = LEARNED + 40.0  # all ticks are over, and none for long
GROUPS = {(0, 1): 10, (2, 3): 11, (0, 2): 12, (1, 3): 13}


def tick(number: int, slow: Mapping[tuple[int, int], float]) -> Collectives:
    """Four ranks in pairs; each call takes 1 ms, and one member waits 3 ms more."""
    rows = []
    for members, comm in GROUPS.items():
        for at, rank in enumerate(members):
            lasted = int((slow.get(members, 1.0) + (3 if at else 0)) * MS)
            rows.append((rank, comm, number, at, lasted))
    who, comm_of, seq, rank_in, lasted_of = np.array(rows).T
    end = (number + 1) * 100 * MS + np.zeros(len(who), np.int64)
    return from_columns(
        {
            "who": who, "comm": comm_of.astype(np.uint64), "seq": seq, "op": np.zeros(len(who)),
            "rank": rank_in, "nranks": np.full(len(who), 2), "size_bytes": np.full(len(who), 4096),
            "end_ns": end, "start_ns": end - lasted_of, "gpu_duration_ns": lasted_of, "step": seq,
        },
        ("AllReduce",),
        [Recorder("job", f"n{rank // 2}", rank) for rank in range(4)],
    )  # fmt: skip


def watched(slow: Mapping[tuple[int, int], float], ticks: int = 20) -> LiveTransfers:
    found = LiveTransfers()
    for number in range(LEARNED + 5 + ticks):
        rows = tick(number, slow if number >= LEARNED + 5 else {})
        found.take(rows, match_collectives(rows), float(number))
    return found


def test_nothing_is_said_while_transfers_are_as_usual() -> None:
    assert watched({}).locate("job", END_S) is None
    assert watched({(0, 2): 1.2}).locate("job", END_S) is None


def test_a_pair_whose_transfers_became_slow_is_the_link() -> None:
    found = watched({(0, 2): 3.0})
    place = found.locate("job", END_S)
    assert place is not None and place.text == "rank 0 ↔ rank 2"
    assert found.locate("another job", END_S) is None


def test_everything_that_leaves_a_node_is_slow_through_its_card() -> None:
    """With two nodes either card explains it, so the ranks between them are named."""
    place = watched({(0, 2): 3.0, (1, 3): 3.0}).locate("job", END_S)
    assert place is not None and place.text == "one of the links among ranks 0, 1, 2, 3"


def pairs(number: int, slow_ms: float, ends: tuple[int, ...] = (0, 1)) -> Collectives:
    """Rank 0 sends to 1 and 1 to 2; who comes first waits 5 ms, and nothing numbers the calls."""
    rows = []
    for sender, receiver, lasted in ((0, 1, slow_ms), (1, 2, 1.0)):
        for turn in range(2):
            rows.append((sender, receiver, 0, lasted + (5 if turn else 0)))
            rows.append((receiver, sender, 1, lasted + (0 if turn else 5)))
    chosen = [row for row in rows if row[0] in (*ends, 2)]
    who, peer, op, lasted_ms = np.array(chosen).T
    lasted_ns = (lasted_ms * MS).astype(np.int64)
    end = (number + 1) * 100 * MS + np.arange(len(who)) * MS
    return from_columns(
        {
            "who": who, "comm": np.full(len(who), 7, np.uint64), "seq": np.full(len(who), -1),
            "op": op, "rank": who, "peer": peer, "nranks": np.full(len(who), 3),
            "size_bytes": np.full(len(who), 4096), "end_ns": end, "start_ns": end - lasted_ns,
            "gpu_duration_ns": lasted_ns, "weight": np.full(len(who), 10.0),
        },
        ("Send", "Recv"),
        [Recorder("job", f"n{rank}", rank) for rank in range(3)],
    )  # fmt: skip


def watched_pairs(slow_ms: float, ends: tuple[int, ...] = (0, 1)) -> LiveTransfers:
    found = LiveTransfers()
    for number in range(LEARNED + 40):
        rows = pairs(number, slow_ms if number > LEARNED + 5 else 1.0, ends)
        found.take(rows, match_collectives(rows), float(number))
    return found


def test_a_slow_pair_of_sends_and_receives_is_the_link() -> None:
    assert watched_pairs(1.2).locate("job", END_S) is None
    found = watched_pairs(3.0)
    place = found.locate("job", END_S)
    assert place is not None and (place.text, place.ranks) == ("rank 0 ↔ rank 1", (0, 1))
    # two calls of a tick stand for ten each, and each takes 2 ms longer
    assert math.isclose(found.lost_by("job", END_S), 20 * 2e-3, rel_tol=0.01)
    assert found.lost_by("another job", END_S) == 0.0


def test_one_end_alone_shows_how_long_it_waits_and_not_the_transfer() -> None:
    assert watched_pairs(3.0, ends=(0,)).locate("job", END_S) is None


def test_transfers_that_ended_slow_are_no_link_of_what_comes_later() -> None:
    found = watched_pairs(3.0)
    assert found.locate("job", END_S + FRESH_S - 1) is not None
    assert found.locate("job", END_S + FRESH_S) is None
    assert found.lost_by("job", END_S + FRESH_S) == 0.0


@pytest.mark.parametrize("later_s", [FRESH_S, 1.0])
def test_only_transfers_that_ended_make_room_for_others(
    monkeypatch: pytest.MonkeyPatch, later_s: float
) -> None:
    found = watched({(0, 2): 3.0})
    monkeypatch.setattr(live_transfers, "MAX_KINDS", len(GROUPS))
    for number in range(LEARNED + 40):
        rows = pairs(number, 3.0 if number > LEARNED + 5 else 1.0)
        found.take(rows, match_collectives(rows), END_S + later_s + number / 100)
    place = found.locate("job", END_S + later_s + 1)
    assert place is not None
    assert place.ranks == ((0, 1) if later_s == FRESH_S else (0, 2))
