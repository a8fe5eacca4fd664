"""Which link became slow, from the transfers of communicators as they come."""

from collections.abc import Mapping

import numpy as np

from ingero.core.collectives.columns import Collectives, Recorder, from_columns
from ingero.core.collectives.matching import match_collectives
from ingero.core.places.live_transfers import LEARNED, LiveTransfers

MS = 1_000_000
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
        found.take(rows, match_collectives(rows))
    return found


def test_nothing_is_said_while_transfers_are_as_usual() -> None:
    assert watched({}).locate("job") is None
    assert watched({(0, 2): 1.2}).locate("job") is None


def test_a_pair_whose_transfers_became_slow_is_the_link() -> None:
    found = watched({(0, 2): 3.0})
    place = found.locate("job")
    assert place is not None and place.text == "rank 0 ↔ rank 2"
    assert found.locate("another job") is None


def test_everything_that_leaves_a_node_is_slow_through_its_card() -> None:
    """With two nodes either card explains it, so the ranks between them are named."""
    place = watched({(0, 2): 3.0, (1, 3): 3.0}).locate("job")
    assert place is not None and place.text == "one of the links among ranks 0, 1, 2, 3"
