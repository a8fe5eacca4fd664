"""Load that an engine cannot serve: KV-cache pressure, a growing queue, uneven ranks."""

from collections.abc import Sequence
from statistics import fmean, median
from typing import Final

from ingero.core.inference.replicas import Replica, Sample

KV_FULL: Final = 0.9
KV_WINDOW_S: Final = 15.0
QUEUE_WINDOW_S: Final = 30.0
QUEUE_SAMPLES: Final = 9  # three for each third of the window
QUEUE_LEAST: Final = 8.0  # requests that wait
QUEUE_GROWTH: Final = 1.5  # from the first third of the window to the last
UNEVEN_WINDOW_S: Final = 15.0
UNEVEN_LEAST: Final = 4.0  # requests that wait at one rank
UNEVEN_SHARE: Final = 0.25  # of that, which wait at the median rank


def kv_pressure(replica: Replica, now_s: float) -> str:
    """Return what shows that requests are pushed out of a full KV cache; empty without it."""
    recent = replica.recent(now_s, KV_WINDOW_S)
    usage = _known(recent, "kv_usage")
    if len(usage) < 3 or median(usage) < KV_FULL:
        return ""
    preempted, paused = _known(recent, "preemptions_per_s"), _known(recent, "paused")
    if not any(preempted) and not any(paused):
        return ""
    rate = f"{fmean(preempted):.1f} preemptions per second" if any(preempted) else ""
    held = f"{max(paused):.0f} requests paused" if any(paused) else ""
    return f"the KV cache is {median(usage):.0%} full; " + ", ".join(filter(None, (rate, held)))


def growing_queue(replica: Replica, now_s: float) -> str:
    """Return how the queue grew and why; empty where it does not grow."""
    recent = replica.recent(now_s, QUEUE_WINDOW_S)
    waiting = _known(recent, "waiting")
    if len(waiting) < QUEUE_SAMPLES or recent[-1].at_s - recent[0].at_s < QUEUE_WINDOW_S / 2:
        return ""
    third = len(waiting) // 3
    first, middle, last = (
        fmean(waiting[:third]),
        fmean(waiting[third:-third]),
        fmean(waiting[-third:]),
    )
    is_growing = first <= middle <= last and last >= QUEUE_GROWTH * max(first, 1.0)
    if last < QUEUE_LEAST or not is_growing:
        return ""
    seconds = recent[-1].at_s - recent[0].at_s
    return (
        f"the queue grew from {first:.0f} to {last:.0f} requests in {seconds:.0f} s, "
        f"{_why_waiting(recent)}"
    )


def _why_waiting(recent: Sequence[Sample]) -> str:
    """Return what the engine says about the reason, and what its KV cache shows."""
    capacity, deferred = _known(recent, "waiting_capacity"), _known(recent, "waiting_deferred")
    usage = _known(recent, "kv_usage")
    is_full = len(usage) > 0 and median(usage) >= KV_FULL
    if capacity or deferred:
        held, put_off = (fmean(each) if each else 0.0 for each in (capacity, deferred))
        if put_off > held:
            return "because the engine defers them until something else is done, such as a transfer"
        return "for capacity: " + ("the KV cache is full" if is_full else "the batch is full")
    if is_full:
        return "because the KV cache is full"
    return "and the engine does not say why" if not usage else "because the batch is full"


def uneven_ranks(ranks: Sequence[Replica], now_s: float) -> tuple[Replica, str] | None:
    """Return the data-parallel rank where requests pile up while others have none waiting."""
    waiting = []
    for replica in ranks:
        known = _known(replica.recent(now_s, UNEVEN_WINDOW_S), "waiting")
        if len(known) >= 3:
            waiting.append((fmean(known), replica))
    if len(waiting) < 2:
        return None
    most, worst = max(waiting, key=lambda each: each[0])
    others = [count for count, replica in waiting if replica is not worst]
    if most < UNEVEN_LEAST or median(others) > UNEVEN_SHARE * most or min(others) >= 1:
        return None
    return worst, (
        f"{most:.0f} requests wait at rank {worst.engine.rank}, "
        f"{median(others):.0f} at the median of the other {len(others)} ranks"
    )


def _known(samples: Sequence[Sample], name: str) -> list[float]:
    found = (getattr(sample.report, name) for sample in samples)
    return [value for value in found if value is not None]
