"""The collective at which a job waits for a rank."""

import numpy as np
import pytest

from ingero.core.collectives.columns import Collectives, Recorder, from_columns
from ingero.core.collectives.inherited import StepWaits
from ingero.core.collectives.live_arrivals import measure_arrivals
from ingero.core.collectives.matching import match_collectives
from ingero.core.places.charged import FADE_S, ChargedPlaces, ranks_text, size_text

MS = 1_000_000
MB = 1_000_000


def calls(late_ms: dict[int, dict[int, float]], step: int = 0) -> Collectives:
    """Two groups of two ranks with a gather each, then a reduction of all four.

    `late_ms` is by place and rank.
    """
    places = [(5, (0, 1), "AllGather", 3 * MB), (6, (2, 3), "AllGather", 3 * MB)]
    places.append((9, (0, 1, 2, 3), "AllReduce", 25_200_000))
    rows = []
    for place, (comm, ranks, op, size) in enumerate(places):
        for rank in ranks:
            duration = int((10 - late_ms.get(place, {}).get(rank, 0.0)) * MS)
            name = ("AllGather", "AllReduce").index(op)
            rows.append((rank, comm, step, name, len(ranks), size, duration, place))
    who, comm, steps, op_code, width, size_of, lasted, place_of = np.array(rows).T
    end = 100 * MS * (step + 1) + place_of * 10 * MS
    return from_columns(
        {
            "who": who, "comm": comm.astype(np.uint64), "seq": steps, "op": op_code,
            "rank": who % width, "nranks": width, "size_bytes": size_of, "end_ns": end,
            "start_ns": end - lasted, "gpu_duration_ns": lasted, "step": steps, "place": place_of,
        },
        ("AllGather", "AllReduce"),
        [Recorder("j", "n", rank) for rank in range(4)],
    )  # fmt: skip


def taken(*steps: dict[int, dict[int, float]], found: ChargedPlaces | None = None) -> ChargedPlaces:
    found = found or ChargedPlaces()
    for number, late in enumerate(steps):
        rows = calls(late, number)
        member = rows.who.astype(np.int64)
        found.take(
            measure_arrivals(rows, match_collectives(rows), member, StepWaits(), 0.0),
            rows,
            float(number),
        )
    return found


def test_the_place_with_the_largest_charge_of_a_step_is_named() -> None:
    found = taken({0: {1: 2.0}, 2: {1: 5.0, 3: 1.0}}, {0: {1: 2.0}, 2: {1: 6.0}})
    assert found.describe(1, world=4) == "AllReduce of 25.2 MB among all 4 ranks"
    assert found.describe(0, world=4) == ""  # nobody waits for it


def test_members_of_a_small_communicator_are_listed() -> None:
    found = taken({1: {3: 4.0}, 2: {3: 1.0}})
    assert found.describe(3, world=4) == "AllGather of 3 MB among ranks 2, 3"


def test_old_charges_fade() -> None:
    found = taken({0: {1: 9.0}})
    rows = calls({2: {1: 4.0}}, 1)
    member = rows.who.astype(np.int64)
    arrivals = measure_arrivals(rows, match_collectives(rows), member, StepWaits(), 0.0)
    found.take(arrivals, rows, 2 * FADE_S)
    assert found.describe(1, world=4).startswith("AllReduce")


def test_a_member_that_is_gone_is_forgotten() -> None:
    found = taken({0: {1: 9.0}})
    found.forget(1)
    assert found.describe(1, world=4) == ""


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (4, "4 B"), (1000, "1 kB"), (25_165_824, "25.2 MB"), (999_600, "1 MB")],
)
def test_sizes_are_read_as_people_say_them(size: int, text: str) -> None:
    assert size_text(size) == text


def test_many_ranks_are_not_all_listed() -> None:
    assert ranks_text(list(range(0, 64, 4)), 16, 64) == (
        "among ranks 0, 4, 8, 12, 16, 20, 24, 28 … (16 of them)"
    )
    assert ranks_text([0, 4], 16, 64) == "among 16 ranks"
