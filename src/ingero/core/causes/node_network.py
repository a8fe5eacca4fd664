"""Which node's network sets it apart: counters and port speeds of all nodes of a job, compared."""

from collections.abc import Mapping, Sequence
from heapq import nlargest, nsmallest
from typing import Final, NamedTuple

from ingero.contract.causes import Signal
from ingero.contract.verdict import CauseClass
from ingero.core.causes.answer import summarise
from ingero.core.causes.ranking import MIN_PEERS, Lateness, compare_signals, rank_differences
from ingero.core.causes.signal_rules import RULES, Place
from ingero.core.places.links import LinkPlace

NETWORK_SIGNALS: Final = tuple(
    signal for signal, rule in RULES.items() if rule.place is Place.NETWORK
)
_LATENESS: Final = Lateness(cause_class=CauseClass.NETWORK)


class SlowNode(NamedTuple):
    """A node whose network differs from that of the others, and what differs."""

    node: str
    text: str


class RankNetwork(NamedTuple):
    """The network signals of one rank; those of ranks on one node may differ in containers."""

    node: str
    rank: int | None
    signals: Mapping[Signal, float]


def find_slow_node(ranks: Sequence[RankNetwork], link: LinkPlace | None) -> SlowNode | None:
    """Return the only node whose network stands out; it must be an end of a link that is known."""
    nodes = _by_node(ranks)
    found = []
    for node in _worst(nodes):
        mine = nodes[node]
        others = [values for other, values in nodes.items() if other != node]
        peers = {}
        for signal in mine:
            known = [each[signal] for each in others if signal in each]
            if len(known) >= MIN_PEERS:
                peers[signal] = summarise(known)
        comparable = {signal: value for signal, value in mine.items() if signal in peers}
        differences = rank_differences(compare_signals(comparable, peers, _LATENESS), _LATENESS)
        if differences:
            found.append(SlowNode(node, differences[0].text))
    if len(found) != 1:
        return None
    here = {each.rank for each in ranks if each.node == found[0].node}
    return found[0] if link is None or link.touches(found[0].node, here) else None


def _worst(nodes: Mapping[str, Mapping[Signal, float]]) -> list[str]:
    """Return the two worst nodes of each signal: where the first two do not differ, none does."""
    worst: dict[str, None] = {}
    for signal in NETWORK_SIGNALS:
        known = [(values[signal], node) for node, values in nodes.items() if signal in values]
        pick = nlargest if RULES[signal].higher_is_worse else nsmallest
        worst |= dict.fromkeys(node for _, node in pick(2, known))
    return list(worst)


def _by_node(ranks: Sequence[RankNetwork]) -> dict[str, dict[Signal, float]]:
    """Return the worst value of each signal on each node."""
    nodes: dict[str, dict[Signal, float]] = {}
    for each in ranks:
        mine = nodes.setdefault(each.node, {})
        for signal in NETWORK_SIGNALS:
            if signal in each.signals:
                worse = max if RULES[signal].higher_is_worse else min
                value = each.signals[signal]
                mine[signal] = worse(mine.get(signal, value), value)
    return nodes
