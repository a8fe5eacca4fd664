"""Which node's network differs from that of the others of a job."""

import pytest

from ingero.contract.causes import Signal
from ingero.core.causes.node_network import RankNetwork, SlowNode, find_slow_node
from ingero.core.places.links import LinkPlace

HEALTHY = {Signal.RETRANSMIT_SHARE: 0.0002, Signal.NIC_ERRORS: 0.4, Signal.NIC_SPEED: 3200.0}


def job(slow: dict[Signal, float], nodes: int = 4) -> list[RankNetwork]:
    """Two ranks on each node; the signals of rank 3, on node n1, differ."""
    return [
        RankNetwork(f"n{rank // 2}", rank, HEALTHY | (slow if rank == 3 else {}))
        for rank in range(2 * nodes)
    ]


@pytest.mark.parametrize(
    ("slow", "text"),
    [
        ({Signal.RETRANSMIT_SHARE: 0.021}, "TCP retransmits 2.1 %, peers 0.0 %"),
        (
            {Signal.NIC_ERRORS: 85.0},
            "errors and drops of network devices 85.0 a second, peers 0.4 a second",
        ),
        (
            {Signal.NIC_SPEED: 2800.0},
            "network ports that are up have 2800 Gb/s in all, peers 3200 Gb/s",
        ),
    ],
)
def test_the_node_that_stands_out_is_named_with_both_values(
    slow: dict[Signal, float], text: str
) -> None:
    assert find_slow_node(job(slow), None) == SlowNode("n1", text)
    assert find_slow_node(job(slow), LinkPlace("rank 3 ↔ rank 6", (3, 6))) == SlowNode("n1", text)


@pytest.mark.parametrize(
    ("link", "is_end"),
    [
        (LinkPlace("rank 0 ↔ rank 6", (0, 6)), False),
        (LinkPlace("node n0's NIC", (0, 1), "n0"), False),
        (LinkPlace("node n1's NIC", (2, 3), "n1"), True),
        (LinkPlace("one of the links among ranks 0, 4", (), among=(0, 4)), False),
        (LinkPlace("one of the links among ranks 0, 2", (), among=(0, 2)), True),
    ],
)
def test_only_an_end_of_the_known_link_is_its_cause(link: LinkPlace, is_end: bool) -> None:
    assert (find_slow_node(job({Signal.NIC_ERRORS: 85.0}), link) is not None) == is_end


def test_healthy_variations_and_too_few_nodes_name_nobody() -> None:
    assert (
        find_slow_node(job({Signal.RETRANSMIT_SHARE: 0.003, Signal.NIC_ERRORS: 1.1}), None) is None
    )
    assert find_slow_node(job({Signal.NIC_ERRORS: 85.0}, nodes=2), None) is None
    assert find_slow_node([], None) is None


def test_two_nodes_that_differ_are_not_one_cause() -> None:
    ranks = job({Signal.NIC_ERRORS: 85.0}, nodes=8)
    ranks[10] = RankNetwork("n5", 10, HEALTHY | {Signal.NIC_ERRORS: 70.0})
    assert find_slow_node(ranks, None) is None
