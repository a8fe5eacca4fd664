"""Slow links are found by comparison with equal operations; roles by what ranks communicate."""

from collections.abc import Sequence

import numpy as np
import pytest
from tests.support.link_rows import OPS, Row, call, columns, links, roles, within

from ingero.core.collectives.columns import Collectives, Recorder


def pairs(transfers_us: Sequence[float], steps: int = 4, wait_us: float = 500.0) -> Collectives:
    """Return communicators of two ranks each, with the same operation in every step."""
    rows = []
    for comm, transfer in enumerate(transfers_us):
        for step in range(steps):
            rows += call((2 * comm, 2 * comm + 1), 7 + comm, step, transfer, wait_us)
    return columns(rows)


def test_a_slow_pair_is_found_by_its_transfer_not_by_its_waits() -> None:
    (link,) = links(pairs([100, 100, 300, 100]))
    assert (link.comm, link.op, link.size_bytes) == (9, "AllReduce", 1000)
    assert (link.members, link.fast_members) == ((4, 5), (0, 1, 2, 3, 6, 7))
    assert (link.ratio, link.error) == (pytest.approx(3.0), 0.05)
    assert link.loss_s == pytest.approx(200e-6)
    assert link.describe([Recorder(None, None, 100 + n) for n in range(8)]) == (
        "AllReduce of 1000 bytes among ranks 104, 105: transfer 3.00x that of the same operation "
        "elsewhere (±0.05), 200 µs a step"
    )


@pytest.mark.parametrize(("transfer_us", "is_slow"), [(130, False), (131, True)])
def test_a_link_is_slow_beyond_thirty_percent(transfer_us: float, is_slow: bool) -> None:
    found = links(pairs([100, 100, transfer_us, 100]), step_s=0.001)
    assert bool(found) == is_slow


@pytest.mark.parametrize(("transfer_us", "is_slow"), [(158, False), (161, True)])
def test_a_link_must_stand_out_from_the_spread_of_the_faster_half(
    transfer_us: float, is_slow: bool
) -> None:
    """They lie 40, 20, 0 and 0 % below 100 µs: the error is 1.4826 · 10 %, and four are needed."""
    found = links(pairs([60, 80, 100, transfer_us, 100]), step_s=0.001)
    assert bool(found) == is_slow
    if found:
        assert found[0].error == pytest.approx(0.14826)


@pytest.mark.parametrize(("step_s", "is_slow"), [(0.0199, True), (0.0201, False)])
def test_a_link_must_cost_one_percent_of_the_step(step_s: float, is_slow: bool) -> None:
    assert bool(links(pairs([100, 100, 300, 100]), step_s)) == is_slow


def test_the_loss_counts_how_often_a_step_uses_the_link() -> None:
    (link,) = links(pairs([100, 100, 300, 100], steps=8), steps=4)
    assert link.loss_s == pytest.approx(400e-6)


def test_the_costliest_link_comes_first() -> None:
    found = links(pairs([100, 100, 300, 100, 400, 100]))
    assert [link.members for link in found] == [(8, 9), (4, 5)]
    assert found[0].fast_members == found[1].fast_members == (0, 1, 2, 3, 6, 7, 10, 11)


def test_only_equal_operations_are_compared() -> None:
    """A larger transfer, another operation and a wider communicator take longer by nature."""
    rows = [row for step in range(4) for row in call((0, 1), 7, step, 100)]
    for step in range(4):
        rows += call((2, 3), 8, step, 300, size=2000)
        rows += call((4, 5), 9, step, 300, op="AllGather")
        rows += call((6, 7, 8), 10, step, 300)
    assert links(columns(rows)) == []
    for step in range(4):
        rows += call((10, 11), 11, step, 300)
    assert [link.members for link in links(columns(rows))] == [(10, 11)]


def test_collectives_without_all_members_say_nothing_about_the_transfer() -> None:
    rows = [row for comm in range(3) for s in range(4) for row in call((comm, 9), comm, s, 100)]
    rows += [row for s in range(4) for row in call((5, 6), 4, s, 300)[:1]]
    assert links(columns(rows)) == []


def test_rows_outside_of_steps_are_left_out() -> None:
    given = pairs([100, 100, 300, 100])
    outside = np.where(given.comm == 9, -1, 0)
    assert within(given, outside, 4, 0.01) == []
    assert within(given, np.full(len(given), -1), 4, 0.01) == []
    assert links(given, steps=0) == []


def test_single_communicators_and_instant_transfers_are_not_compared() -> None:
    assert links(pairs([300])) == []
    assert links(pairs([0, 0, 300, 0], wait_us=0)) == []


def repeated(members: Sequence[int], comm: int, times: int = 40, size: int = 1000) -> list[Row]:
    return [row for seq in range(times) for row in call(members, comm, seq, 100, size=size)]


def test_ranks_with_the_same_operations_have_one_role() -> None:
    rows = repeated((0, 1, 2, 3), 1) + repeated((0, 1), 2, size=50) + repeated((2, 3), 3, size=60)
    assert roles(rows, 4) == [0, 0, 1, 1]


@pytest.mark.parametrize(("times", "role"), [(4, 0), (5, 1)])
def test_rare_operations_do_not_make_a_role(times: int, role: int) -> None:
    """A twentieth of what comes most often is regular."""
    rows = repeated((0, 1, 2), 1, times=100) + repeated((2, 3), 9, times=times, size=77)
    assert roles(rows, 3) == [0, 0, role]


def test_sizes_that_always_differ_do_not_make_a_role() -> None:
    rows = repeated((0, 1, 2), 1, times=2)
    for seq in range(70):
        rows += [r for r in call((0, 1, 2), 1, 10 + seq, 100, size=5000 + seq) if r["who"] < 2]
        rows += [r for r in call((0, 1, 2), 1, 10 + seq, 100, size=9000 + seq) if r["who"] == 2]
    assert roles(rows, 3) == [0, 0, 0]


def send(source: int, target: int, comm: int, ranks: Sequence[int], seq: int) -> list[Row]:
    base = call(ranks, comm, seq, 100)
    ends = {source: ("Send", target), target: ("Recv", source)}
    return [
        {**row, "op": OPS.index(ends[row["who"]][0]), "peer": ranks.index(ends[row["who"]][1])}
        for row in base
        if row["who"] in ends
    ]


def test_ranks_that_send_to_each_other_are_different_stages() -> None:
    """Two stages of two replicas: ranks 0 and 1 send to 2 and 3, and each stage reduces."""
    rows = repeated((0, 1), 1) + repeated((2, 3), 2)
    for seq in range(40):
        for source, target, comm in ((0, 2, 5), (1, 3, 6)):
            rows += send(source, target, comm, (source, target), seq)
            rows += send(target, source, comm, (source, target), 100 + seq)
    assert roles(rows, 4) == [0, 0, 1, 1]


def test_communicators_in_which_members_send_do_not_connect_a_stage() -> None:
    """A communicator of all ranks carries the sends: only the others connect ranks of a stage."""
    everyone = (0, 1, 2, 3)
    rows = repeated((0, 1), 1) + repeated((2, 3), 2) + repeated(everyone, 5)
    for seq in range(40):
        for source, target in ((0, 2), (1, 3), (2, 0), (3, 1)):
            rows += send(source, target, 5, everyone, 100 + 10 * seq + source)
    assert roles(rows, 4) == [0, 0, 1, 1]


def test_stages_are_joined_through_several_communicators() -> None:
    """Ranks 0 and 1, and 1 and 2, share communicators: all three are one stage."""
    rows = repeated((0, 1), 1) + repeated((1, 2), 2) + repeated((2, 0), 3) + repeated((3, 4), 4)
    for seq in range(40):
        rows += send(2, 3, 6, (2, 3), seq) + send(3, 2, 6, (2, 3), 100 + seq)
        rows += send(0, 4, 7, (0, 4), seq) + send(4, 0, 7, (0, 4), 100 + seq)
    found = roles(rows, 5)
    assert found[0] == found[2] != found[3] == found[4]
