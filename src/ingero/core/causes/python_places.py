"""What sets a thread's time apart from that of its peers' threads: waits, locks, readers, Python.

Peers are ranks of the same job that were sampled at the same time. Without them only waits are
named that no rank has in health: for a lock, for a reader or in a sleep.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Final

from ingero.contract.causes import CauseKind
from ingero.core.causes.profile import NOWHERE, Doing, Frame, PlaceCount, PlaceKey, Profile
from ingero.core.causes.ranking import Difference, Lateness
from ingero.core.causes.signal_rules import Place
from ingero.core.durations import readable_seconds
from ingero.core.robust import MAD_TO_SIGMA

MIN_SAMPLES: Final = 100
MIN_SHARE: Final = 0.03  # of the samples, beyond what the peers have
ERRORS: Final = 4.0  # standard errors, or spreads of the peers, that a difference must exceed
TIMES: Final = 1.5  # the peers' share that the share must reach
PERIOD_ERROR: Final = 0.3  # of a few collections that are counted within seconds
MIN_TOGETHER: Final = 0.6  # of the waits during which another thread does the same
MIN_WITHOUT_PEERS: Final = 0.5  # of the lateness that a wait must explain where no peer was sampled
_SAYS_NOTHING: Final = frozenset({Doing.RUNS, Doing.WAITS})  # without a place, or without peers
_READING: Final = (Doing.READS, Doing.DISK)
_NOWHERE: Final = (NOWHERE.file, NOWHERE.function)


@dataclass(frozen=True, slots=True, kw_only=True)
class Collections:
    """Garbage collections during the look: how many, over how long, and the length of a step.

    `period` is that of the rank's stalls in steps, which Fleet saw for longer.
    """

    count: int = 0
    seconds: float = 0.0
    step_ms: float | None = None
    period: int | None = None


def compare_collections(
    mine: Profile, peers: Sequence[Profile], runs: Collections, lateness: Lateness
) -> Difference | None:
    """Return the difference in garbage collection, with its length and period."""
    others = [(peer.collecting_share, peer.samples) for peer in peers]
    usual, share = _usual([one for one, _ in others]), mine.collecting_share
    if mine.samples < MIN_SAMPLES or not _is_more(share, mine.samples, others):
        return None
    explains = lateness.explained_by(share - usual)
    if not peers and (explains is None or explains < MIN_WITHOUT_PEERS):
        return None
    peer = _percent(usual) if peers else "unknown"
    return Difference(
        kind=CauseKind.GC,
        place=Place.HOST,
        text=f"garbage collection{_rhythm(runs, share)}, {_percent(share)} of the time, "
        f"peers {peer}",
        cost=share - usual,
        explains=explains,
    )


def compare_places(
    mine: tuple[Profile, float], peers: Sequence[tuple[Profile, float]], lateness: Lateness
) -> list[Difference]:
    """Return the places where a thread spends more of its time than its peers do.

    Each profile comes with the share of the runnable time in which its thread had a CPU: the
    kernel shows a thread that waits for a CPU as running.
    """
    own, _ = mine
    if own.samples < MIN_SAMPLES:
        return []
    found = []
    for key, count in own.places.items():
        if key.doing is Doing.INTERPRETER or (key.inner == _NOWHERE and key.doing in _SAYS_NOTHING):
            continue
        others = [(_peer_share(peer, key), peer[0].samples) for peer in peers]
        usual, share = _usual([one for one, _ in others]), _share(mine, key)
        if not _is_more(share, own.samples, others):
            continue
        explains = lateness.explained_by(share - usual)
        if not peers and (
            key.doing in _SAYS_NOTHING or explains is None or explains < MIN_WITHOUT_PEERS
        ):
            continue
        kind, text = _describe(key, count, own)
        peer = _percent(usual) if peers else "unknown"
        text = text.format(share=f"{_percent(share)} of the time", peers=f"peers {peer}")
        found.append(
            Difference(
                kind=kind,
                place=Place.HOST,
                text=text,
                cost=share - usual,
                explains=explains,
            )
        )
    return found


def compare_interpreter(
    mine: Profile, peers: Sequence[Profile], lateness: Lateness
) -> Difference | None:
    """Return the difference in waits for the interpreter lock, wherever a thread waits for it."""
    others = [(peer.doing_share(Doing.INTERPRETER), peer.samples) for peer in peers]
    usual, share = _usual([one for one, _ in others]), mine.doing_share(Doing.INTERPRETER)
    if mine.samples < MIN_SAMPLES or not _is_more(share, mine.samples, others):
        return None
    explains = lateness.explained_by(share - usual)
    if not peers and (explains is None or explains < MIN_WITHOUT_PEERS):
        return None
    count = PlaceCount()
    for key, place in mine.places.items():
        if key.doing is Doing.INTERPRETER:
            count.samples += place.samples
            count.others.update(place.others)
    # Who holds this lock also does so while nobody waits: only the waits count here.
    other, during = next(iter(count.others.most_common(1)), (None, 0))
    is_clear = other is not None and during >= MIN_TOGETHER * count.samples
    meanwhile = f"; meanwhile {_meanwhile(other)}" if other and is_clear else ""
    peer = _percent(usual) if peers else "unknown"
    return Difference(
        kind=CauseKind.INTERPRETER_LOCK,
        place=Place.HOST,
        text=f"waits for the interpreter lock {_percent(share)} of the time, "
        f"peers {peer}{meanwhile}",
        cost=share - usual,
        explains=explains,
    )


def _peer_share(profile: tuple[Profile, float], key: PlaceKey) -> float:
    """Return the share of a peer; where the place is not known, everywhere counts."""
    return profile[0].doing_share(key.doing) if key.inner == _NOWHERE else _share(profile, key)


def _share(profile: tuple[Profile, float], key: PlaceKey) -> float:
    samples, on_cpu = profile
    return samples.share(key) * (on_cpu if key.doing is Doing.RUNS else 1.0)


def _describe(key: PlaceKey, count: PlaceCount, mine: Profile) -> tuple[CauseKind, str]:
    """Return the kind of a place and its text, with {share} and {peers}."""
    where = "" if key.inner == _NOWHERE else f" in {_where(count)}"
    together = _together(count, mine)
    meanwhile = f"; meanwhile {_meanwhile(together)}" if together else ""
    reads = together is not None and together[1] in _READING
    text = f"{key.doing.value} {{share}}{where}, {{peers}}{meanwhile}"
    if key.doing is Doing.RUNS:
        return CauseKind.PYTHON, f"runs {_where(count)} {{share}}, {{peers}}"
    if key.doing in _READING:
        return CauseKind.READER, text
    if reads:
        return CauseKind.READER, f"waits {{share}}{where}, {{peers}}{meanwhile}"
    return CauseKind.LOCK if key.doing is Doing.LOCK else CauseKind.WAIT, text


def _where(count: PlaceCount) -> str:
    inner, own = count.inner.most_common(1)[0][0], count.own.most_common(1)[0][0]
    if (inner.file, inner.function) == (own.file, own.function):
        return f"`{_plain(inner.function)}` ({_plain(inner.where())})"
    return f"`{_plain(inner.function)}` ({_plain(inner.where())}), called at {_plain(own.where())}"


def _together(count: PlaceCount, mine: Profile) -> tuple[str, Doing, Frame] | None:
    """Return what another thread does during most of these waits, and less often otherwise.

    One that reads counts first: what it reads from may be a process that sleeps meanwhile.
    """
    outside = mine.samples - count.samples
    found = []
    for other, during in count.others.most_common():
        share = during / count.samples
        share_outside = (mine.others[other] - during) / outside if outside else 0.0
        if share >= MIN_TOGETHER and share_outside <= 0.5 * share:
            found.append(other)
    return next((other for other in found if other[1] in _READING), found[0] if found else None)


def _meanwhile(together: tuple[str, Doing, Frame]) -> str:
    name, doing, frame = together
    return f"{_plain(name)} {doing.value} in `{_plain(frame.function)}` ({_plain(frame.where())})"


def _rhythm(runs: Collections, share: float) -> str:
    """Return `, 180 ms every 10 steps`, or `every 2.1 s` where steps are not known."""
    if not runs.count or not runs.seconds:
        return ""
    length_s = share * runs.seconds / runs.count
    every_s = runs.seconds / runs.count
    if runs.step_ms:
        # the collection itself is on top of the steps
        steps = max(round(1e3 * (every_s - length_s) / runs.step_ms), 1)
        if runs.period and abs(steps - runs.period) <= PERIOD_ERROR * runs.period:
            steps = runs.period
        every = "every step" if steps == 1 else f"every {steps} steps"
    else:
        every = f"every {readable_seconds(every_s)}"
    return f", {readable_seconds(length_s)} {every}"


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def _usual(shares: Sequence[float]) -> float:
    return median(shares) if shares else 0.0


def _is_more(share: float, samples: int, peers: Sequence[tuple[float, int]]) -> bool:
    """Return whether a share of samples is larger than those of the peers, and not by chance.

    Each peer is a share and a number of samples. A wait that the peers have as well may be a wait
    for the peers, so it must be clearly longer.
    """
    usual = _usual([one for one, _ in peers])
    error = math.sqrt(_variance(share, samples) + sum(_variance(*one) for one in peers))
    spread = _usual([abs(one - usual) for one, _ in peers])
    return share >= TIMES * usual and share - usual > max(
        MIN_SHARE, ERRORS * error, ERRORS * MAD_TO_SIGMA * spread
    )


def _variance(share: float, samples: int) -> float:
    return share * (1.0 - share) / samples if samples else 0.0


def _plain(text: str) -> str:
    """Return a name of the job as it may stand in a text: printable, short, without braces."""
    return "".join(c for c in text if c.isprintable() and c not in "{}")[:60]
