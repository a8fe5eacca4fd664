"""The health score of a recording, by minute: the formula of the agent, with the recording as what is usual."""

from bisect import bisect_left
from collections.abc import Sequence
from statistics import fmean, median

from ingero.core.health.score import ScorePolicy, Signals, compute_score

Rate = tuple[int, float]  # begin of a minute, calls per second
Snapshot = tuple[int, float, float]  # time, CPU busy and memory used in percent
MINUTE_NS = 60_000_000_000


def recorded_scores(
    rates: Sequence[Rate], snapshots: Sequence[Snapshot]
) -> list[tuple[int, float]]:
    """(minute, score) of every minute with calls. Throughput is a share of the median minute; both sides are in order
    of time. Compute is missing: a recording does not say how many GPUs the node has."""
    working = [rate for _, rate in rates if rate > 0]
    if not working:
        return []
    usual = median(working)
    times = [at_ns for at_ns, _, _ in snapshots]
    scores = []
    for begin_ns, rate in rates:
        inside = snapshots[bisect_left(times, begin_ns) : bisect_left(times, begin_ns + MINUTE_NS)]
        cpu = 1 - fmean(busy for _, busy, _ in inside) / 100 if inside else None
        memory = 1 - fmean(used for _, _, used in inside) / 100 if inside else None
        score = compute_score(
            Signals(throughput=rate / usual, memory=memory, cpu=cpu), ScorePolicy()
        )
        if score is not None:
            scores.append((begin_ns, score.value))
    return scores
