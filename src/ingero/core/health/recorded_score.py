"""The health score of a recording, minute by minute, with the recording as its own baseline."""

from bisect import bisect_left
from collections.abc import Sequence
from statistics import fmean, median

from ingero.core.health.score import ScorePolicy, Signals, compute_score

Rate = tuple[int, float]  # start of a minute, calls per second
Snapshot = tuple[int, float, float]  # time, CPU busy and memory used in percent
MINUTE_NS = 60_000_000_000


def recorded_scores(
    rates: Sequence[Rate], snapshots: Sequence[Snapshot]
) -> list[tuple[int, float]]:
    """Return (minute, score) for every minute with calls.

    `rates` and `snapshots` are in order of time. Throughput is relative to the median minute. The
    compute signal is missing, because a recording does not say how many GPUs the node has.
    """
    working = [rate for _, rate in rates if rate > 0]
    if not working:
        return []
    typical = median(working)
    times = [at_ns for at_ns, _, _ in snapshots]
    scores = []
    for begin_ns, rate in rates:
        inside = snapshots[bisect_left(times, begin_ns) : bisect_left(times, begin_ns + MINUTE_NS)]
        cpu = 1 - fmean(busy for _, busy, _ in inside) / 100 if inside else None
        memory = 1 - fmean(used for _, _, used in inside) / 100 if inside else None
        score = compute_score(
            Signals(throughput=rate / typical, memory=memory, cpu=cpu), ScorePolicy()
        )
        if score is not None:
            scores.append((begin_ns, score.value))
    return scores
