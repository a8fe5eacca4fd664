"""Which differences explain a slow rank: signals against those of its peers, the largest first.

"Nothing" is an answer. A difference is named only where it exceeds the spread of the peers, and
where it costs time, only if it explains a fair share of the lateness.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Final

from ingero.contract.causes import CauseKind, PeerValue, Signal
from ingero.contract.verdict import CauseClass
from ingero.core.causes.signal_rules import (
    PROGRAM_XIDS,
    RULES,
    Cost,
    Place,
    SignalRule,
    throttle_text,
)

SPREADS: Final = 4.0  # robust standard deviations of the peers that a difference must exceed
MIN_PEERS: Final = 2  # a median of one value has no spread
MIN_EXPLAINED: Final = 0.2  # of the lateness
MIN_COST: Final = 0.05  # of the time, where it is not known how late the rank is
# Where the verdict's class contradicts the place, the difference must explain most of it.
MIN_EXPLAINED_ELSEWHERE: Final = 0.6
SEEN_ON_STACKS: Final = frozenset(
    {CauseKind.GC, CauseKind.LOCK, CauseKind.INTERPRETER_LOCK, CauseKind.READER, CauseKind.WAIT}
)
_PLACES: Final = {
    CauseClass.COMPUTE: Place.GPU,
    CauseClass.HOST: Place.HOST,
    CauseClass.STALL: Place.HOST,
    CauseClass.NETWORK: Place.NETWORK,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One thing that sets a rank apart; `explains` is a share of the lateness, if known."""

    kind: CauseKind
    place: Place
    text: str
    cost: float | None = None  # as a share of the time
    explains: float | None = None
    spreads: float = 0.0  # how far outside the peers' spread, to order what has no cost
    least: float = MIN_EXPLAINED  # of the lateness that it must explain


@dataclass(frozen=True, slots=True, kw_only=True)
class Lateness:
    """What is to be explained: the share of the time that the rank is behind, and its class."""

    share: float | None = None
    cause_class: CauseClass = CauseClass.UNKNOWN

    def explained_by(self, cost: float | None) -> float | None:
        """Return the share of the lateness that a cost, as a share of the time, explains."""
        if cost is None or self.share is None or self.share <= 0:
            return None
        return min(max(cost, 0.0) / self.share, 1.0)

    def accepts(self, difference: Difference) -> bool:
        """Return whether a difference is large enough, given where the lateness arises."""
        expected = _PLACES.get(self.cause_class)
        is_elsewhere = expected is not None and difference.place is not expected
        if difference.explains is None:
            is_small = difference.cost is not None and difference.cost < MIN_COST
            return not is_elsewhere and not is_small
        if is_elsewhere and difference.kind is CauseKind.CPU:
            return False  # its host was in time
        least = max(difference.least, MIN_EXPLAINED_ELSEWHERE if is_elsewhere else 0.0)
        return difference.explains >= least


def compare_signals(
    mine: Mapping[Signal, float], peers: Mapping[Signal, PeerValue], lateness: Lateness
) -> list[Difference]:
    """Return the signals that set a rank apart from its peers."""
    found = []
    for signal, rule in RULES.items():
        if signal in mine:
            difference = _compare(rule, mine[signal], peers.get(signal), lateness)
            if difference is not None:
                found.append(difference)
    if Signal.SM_CLOCK in mine:
        found = [_with_reason(each, mine, peers) for each in found]
    xid = int(mine.get(Signal.XID, 0))
    common = peers.get(Signal.XID)  # an error that most GPUs report sets none of them apart
    is_common = common is not None and common.count >= MIN_PEERS and common.median == xid
    if xid and xid not in PROGRAM_XIDS and not is_common:
        text = f"the GPU reported Xid {xid}"
        found.append(Difference(kind=CauseKind.GPU_ERROR, place=Place.GPU, text=text, spreads=1e3))
    return found


def rank_differences(found: Iterable[Difference], lateness: Lateness) -> list[Difference]:
    """Return what explains the lateness, the largest share first, then what has no share.

    A wait that the stack of the thread shows comes before waiting for a CPU: who wakes up from a
    lock or a read waits for a CPU as well.
    """
    kept = [each for each in found if lateness.accepts(each)]
    is_seen = any(each.kind in SEEN_ON_STACKS for each in kept)
    return sorted(
        kept,
        key=lambda each: (
            is_seen and each.kind is CauseKind.CPU,
            each.cost is None,
            -(each.cost or 0.0),
            -each.spreads,
            each.text,
        ),
    )


def _compare(
    rule: SignalRule, mine: float, peer: PeerValue | None, lateness: Lateness
) -> Difference | None:
    if peer is None or peer.count < MIN_PEERS:
        if rule.normal is None:
            return None
        peer = PeerValue(rule.normal, 0.0, 0)
    excess = mine - peer.median if rule.higher_is_worse else peer.median - mine
    if excess <= max(rule.floor, SPREADS * peer.spread) or (
        rule.higher_is_worse and mine < rule.times * peer.median
    ):
        return None
    text = rule.text.format(
        mine=rule.value(mine), peers=rule.value(peer.median) if peer.count else "unknown"
    )
    cost = _cost(rule, mine, peer.median)
    return Difference(
        kind=rule.kind,
        place=rule.place,
        text=text,
        cost=cost,
        explains=lateness.explained_by(cost),
        spreads=excess / max(rule.floor, peer.spread),
        least=rule.least,
    )


def _cost(rule: SignalRule, mine: float, median: float) -> float | None:
    if rule.cost is Cost.SHARE:
        return mine - median
    if rule.cost is Cost.CLOCK and median > 0:
        return 1.0 - mine / median
    return None


def _with_reason(
    difference: Difference, mine: Mapping[Signal, float], peers: Mapping[Signal, PeerValue]
) -> Difference:
    """Add to a lower clock why the driver lowers it, and the temperature where that is heat."""
    if difference.kind is not CauseKind.GPU_CLOCK:
        return difference
    reason = throttle_text(int(mine.get(Signal.THROTTLE, 0)))
    details = [reason] if reason else []
    if "thermal" in reason and Signal.TEMPERATURE in mine:
        details.append(_both("{:.0f} C", Signal.TEMPERATURE, mine, peers))
    elif "power" in reason and Signal.POWER in mine:
        details.append(_both("{:.0f} W", Signal.POWER, mine, peers))
    if not details:
        return difference
    return replace(difference, text=f"{difference.text} ({', '.join(details)})")


def _both(
    form: str, signal: Signal, mine: Mapping[Signal, float], peers: Mapping[Signal, PeerValue]
) -> str:
    peer = peers.get(signal)
    own = form.format(mine[signal])
    return f"{own}, peers {form.format(peer.median)}" if peer and peer.count else own
