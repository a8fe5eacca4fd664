"""The answer to an ask: what was seen of a rank against what was seen of its peers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import or_
from statistics import fmean, median

from ingero.contract.causes import PeerValue, Signal
from ingero.core.causes.profile import Profile
from ingero.core.causes.python_places import (
    Collections,
    compare_collections,
    compare_interpreter,
    compare_places,
)
from ingero.core.causes.ranking import (
    MIN_PEERS,
    Difference,
    Lateness,
    compare_signals,
    rank_differences,
)
from ingero.core.robust import MAD_TO_SIGMA


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a look of a few seconds saw of one rank."""

    signals: Mapping[Signal, float] = field(default_factory=dict)
    profile: Profile = field(default_factory=Profile)
    collections: Collections = field(default_factory=Collections)

    @property
    def on_cpu(self) -> float:
        """Return the share of its runnable time in which the thread had a CPU."""
        run = self.signals.get(Signal.CPU_SHARE, 0.0)
        waited = sum(
            self.signals.get(each, 0.0) for each in (Signal.RUNQUEUE_SHARE, Signal.QUOTA_SHARE)
        )
        return run / (run + waited) if run > 0 else 1.0


def find_causes(
    mine: Seen, peers: Sequence[Seen], known: Mapping[Signal, PeerValue], lateness: Lateness
) -> list[Difference]:
    """Return what explains that a rank is late, the largest share first; empty is "unknown".

    `peers` were looked at at the same time, on the same node. `known` are Fleet's medians over all
    peers, which are preferred.
    """
    values = combine(known, [peer.signals for peer in peers])
    profiles = [peer.profile for peer in peers]
    found = compare_signals(mine.signals, values, lateness)
    for difference in (
        compare_collections(mine.profile, profiles, mine.collections, lateness),
        compare_interpreter(mine.profile, profiles, lateness),
    ):
        if difference is not None:
            found.append(difference)
    beside = [(peer.profile, peer.on_cpu) for peer in peers]
    found += compare_places((mine.profile, mine.on_cpu), beside, lateness)
    return rank_differences(found, lateness)


def combine(
    known: Mapping[Signal, PeerValue], seen: Sequence[Mapping[Signal, float]]
) -> dict[Signal, PeerValue]:
    """Return the peers' values: Fleet's, and those seen here where Fleet knows too few."""
    found = {signal: value for signal, value in known.items() if value.count >= MIN_PEERS}
    for signal in Signal:
        values = [each[signal] for each in seen if signal in each]
        if signal not in found and len(values) >= MIN_PEERS:
            found[signal] = summarise(values)
    return found


def add_up_readings(readings: Sequence[Mapping[Signal, float]]) -> dict[Signal, float]:
    """Return what a GPU said during a look: means of clock and power, every throttle reason."""
    found: dict[Signal, float] = {}
    for reading in readings:
        found |= reading
    for signal in (Signal.SM_CLOCK, Signal.POWER):
        if signal in found:
            found[signal] = fmean(each[signal] for each in readings if signal in each)
    if Signal.THROTTLE in found:
        masks = (int(each.get(Signal.THROTTLE, 0.0)) for each in readings)
        found[Signal.THROTTLE] = float(reduce(or_, masks))
    return found


def summarise(values: Sequence[float]) -> PeerValue:
    """Return median, robust standard deviation and number of some values, of which there is one."""
    centre = median(values)
    spread = MAD_TO_SIGMA * median(abs(value - centre) for value in values)
    return PeerValue(centre, spread, len(values))


def name_rival(difference: Difference, rival: str) -> Difference:
    """Return a difference about the CPU with the name of who takes it."""
    return replace(difference, text=f"{difference.text}, behind {rival}") if rival else difference
