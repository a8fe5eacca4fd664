"""Which signals explain a slow rank: with both values, beyond the peers' spread, or nothing."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingero.contract.causes import CauseKind, PeerValue, Signal
from ingero.contract.verdict import CauseClass
from ingero.core.causes.answer import Seen, combine, find_causes, summarise
from ingero.core.causes.next_steps import NEXT_STEPS
from ingero.core.causes.ranking import (
    Difference,
    Lateness,
    compare_signals,
    rank_differences,
)
from ingero.core.causes.signal_rules import Place, throttle_text

GPU = Lateness(share=0.25, cause_class=CauseClass.COMPUTE)
HOST = Lateness(share=0.25, cause_class=CauseClass.HOST)
PEERS = {
    Signal.SM_CLOCK: PeerValue(1980.0, 5.0, 7),
    Signal.THROTTLE: PeerValue(0.0, 0.0, 7),
    Signal.TEMPERATURE: PeerValue(62.0, 2.0, 7),
    Signal.POWER: PeerValue(640.0, 20.0, 7),
    Signal.ECC_ERRORS: PeerValue(0.0, 0.0, 7),
    Signal.PCIE_WIDTH: PeerValue(16.0, 0.0, 7),
    Signal.RUNQUEUE_SHARE: PeerValue(0.01, 0.004, 7),
    Signal.RETRANSMIT_SHARE: PeerValue(0.0, 0.0, 7),
}


def best(mine: dict[Signal, float], lateness: Lateness) -> list[str]:
    return [each.text for each in find_causes(Seen(signals=mine), [], PEERS, lateness)]


@pytest.mark.parametrize(
    ("mine", "lateness", "text"),
    [
        (
            {Signal.SM_CLOCK: 1410, Signal.THROTTLE: 0x80, Signal.POWER: 420},
            GPU,
            "SM clock 1410 MHz, peers 1980 MHz (power brake, 420 W, peers 640 W)",
        ),
        (
            {Signal.SM_CLOCK: 1200, Signal.THROTTLE: 0x40, Signal.TEMPERATURE: 91},
            GPU,
            "SM clock 1200 MHz, peers 1980 MHz (hardware thermal slowdown, 91 C, peers 62 C)",
        ),
        ({Signal.SM_CLOCK: 1410}, GPU, "SM clock 1410 MHz, peers 1980 MHz"),
        ({Signal.ECC_ERRORS: 12}, GPU, "12 new uncorrected ECC errors, peers 0"),
        ({Signal.PCIE_WIDTH: 8}, GPU, "PCIe link x8, peers x16"),
        ({Signal.XID: 79}, GPU, "the GPU reported Xid 79"),
        ({Signal.RUNQUEUE_SHARE: 0.62}, HOST, "waits for a CPU 62 % of the time, peers 1.0 %"),
        (
            {Signal.QUOTA_SHARE: 0.31},
            HOST,
            "stopped 31 % of the time by the CPU quota of its cgroup, peers unknown",
        ),
        (
            {Signal.RETRANSMIT_SHARE: 0.021},
            Lateness(share=0.1, cause_class=CauseClass.NETWORK),
            "TCP retransmits 2.1 %, peers 0.0 %",
        ),
    ],
)
def test_a_signal_is_named_with_both_values(
    mine: dict[Signal, float], lateness: Lateness, text: str
) -> None:
    assert best(mine, lateness) == [text]


@pytest.mark.parametrize(
    "mine",
    [
        {},
        {Signal.SM_CLOCK: 1950.0},  # within three steps of the clock
        {Signal.RUNQUEUE_SHARE: 0.025},
        {Signal.TEMPERATURE: 95.0, Signal.POWER: 100.0},  # of no consequence without a lower clock
        {Signal.CPU_SHARE: 1.0},
        {Signal.PCIE_WIDTH: 16.0, Signal.ECC_ERRORS: 0.0, Signal.XID: 0.0},
    ],
)
def test_what_is_like_its_peers_is_no_cause(mine: dict[Signal, float]) -> None:
    assert best(mine, Lateness(share=0.1)) == []


def test_the_largest_share_of_the_lateness_comes_first() -> None:
    mine = {Signal.RUNQUEUE_SHARE: 0.20, Signal.QUOTA_SHARE: 0.10}
    found = find_causes(Seen(signals=mine), [], PEERS, Lateness(share=0.25))
    assert [each.kind for each in found] == [CauseKind.CPU, CauseKind.QUOTA]
    assert [round(each.explains or 0, 2) for each in found] == [0.76, 0.4]


def test_a_difference_that_explains_too_little_is_a_guess() -> None:
    """3 % of waiting for a CPU does not make a rank 50 % late."""
    assert best({Signal.RUNQUEUE_SHARE: 0.04}, Lateness(share=0.5)) == []


def test_where_the_class_says_otherwise_only_what_explains_most_counts() -> None:
    assert best({Signal.QUOTA_SHARE: 0.10}, GPU) == []
    assert best({Signal.QUOTA_SHARE: 0.25}, GPU) != []
    assert best({Signal.PCIE_WIDTH: 8.0}, HOST) == []


@given(st.lists(st.floats(0.0, 1.0), min_size=2, max_size=20), st.data())
def test_a_value_among_those_of_the_peers_is_never_named(values: list[float], data) -> None:
    """Between the median and the spread of its peers no signal sets a rank apart."""
    peer = summarise(values)
    mine = data.draw(st.floats(0.0, peer.median + 4 * peer.spread))
    peers = {Signal.RUNQUEUE_SHARE: peer}
    assert compare_signals({Signal.RUNQUEUE_SHARE: mine}, peers, Lateness(share=0.01)) == []


def test_too_few_peers_give_no_answer_unless_the_normal_value_is_known() -> None:
    one = {Signal.SM_CLOCK: PeerValue(1980.0, 0.0, 1), Signal.QUOTA_SHARE: PeerValue(0.0, 0.0, 1)}
    mine = {Signal.SM_CLOCK: 1000.0, Signal.QUOTA_SHARE: 0.5}
    found = compare_signals(mine, one, Lateness(share=0.5))
    assert [each.kind for each in found] == [CauseKind.QUOTA]


def test_medians_of_all_peers_are_preferred_to_those_seen_on_the_node() -> None:
    known = {Signal.SM_CLOCK: PeerValue(1980.0, 3.0, 63)}
    here = [{Signal.SM_CLOCK: 1000.0, Signal.POWER: 10.0}, {Signal.SM_CLOCK: 1000.0}]
    assert combine(known, here)[Signal.SM_CLOCK].median == 1980.0
    assert Signal.POWER not in combine(known, here)


def test_what_has_no_cost_comes_after_what_has_one() -> None:
    without = Difference(kind=CauseKind.PCIE, place=Place.GPU, text="b", spreads=9.0)
    cost = Difference(kind=CauseKind.GPU_CLOCK, place=Place.GPU, text="a", cost=0.1, explains=0.3)
    assert rank_differences([without, cost], GPU) == [cost, without]


def test_reasons_of_a_throttle_are_told_worst_first() -> None:
    assert throttle_text(0x84) == "power brake"
    assert throttle_text(0x1) == throttle_text(0) == ""


def test_every_kind_has_a_next_step() -> None:
    assert set(NEXT_STEPS) == set(CauseKind) - {CauseKind.UNKNOWN}


def test_without_a_known_lateness_only_what_costs_something_is_named() -> None:
    unknown = Lateness(cause_class=CauseClass.HOST)
    assert best({Signal.RUNQUEUE_SHARE: 0.05}, unknown) == []
    assert best({Signal.RUNQUEUE_SHARE: 0.08, Signal.QUOTA_SHARE: 0.2}, unknown) == [
        "stopped 20 % of the time by the CPU quota of its cgroup, peers unknown",
        "waits for a CPU 8.0 % of the time, peers 1.0 %",
    ]


@pytest.mark.parametrize(
    ("waits", "peers", "lateness"),
    [
        (0.11, 0.062, HOST),  # as measured on a busy machine: a lock was the cause
        (0.62, 0.01, GPU),  # the host of a slow GPU was in time
        (0.12, 0.01, HOST),  # explains less than half
    ],
)
def test_some_more_waiting_for_a_cpu_is_no_cause(
    waits: float, peers: float, lateness: Lateness
) -> None:
    known = {Signal.RUNQUEUE_SHARE: PeerValue(peers, 0.004, 7)}
    seen = Seen(signals={Signal.RUNQUEUE_SHARE: waits})
    assert find_causes(seen, [], known, lateness) == []


@pytest.mark.parametrize("kind", [CauseKind.LOCK, CauseKind.READER, CauseKind.GC])
def test_a_wait_on_the_stack_comes_before_waiting_for_a_cpu(kind: CauseKind) -> None:
    cpu = Difference(kind=CauseKind.CPU, place=Place.HOST, text="cpu", cost=0.24, explains=0.96)
    wait = Difference(kind=kind, place=Place.HOST, text="wait", cost=0.15, explains=0.6)
    assert [each.text for each in rank_differences([cpu, wait], HOST)] == ["wait", "cpu"]
    slight = Difference(kind=kind, place=Place.HOST, text="wait", cost=0.02, explains=0.08)
    assert [each.text for each in rank_differences([cpu, slight], HOST)] == ["cpu"]
