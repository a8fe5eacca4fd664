"""A job whose ranks share every collective, with given delays: what follows is known exactly."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ingero.core.blame.record_steps import RecordSteps, measure_steps
from ingero.core.collectives.arrivals import Arrivals, measure_arrivals
from ingero.core.collectives.columns import Collectives, Recorder, from_columns
from ingero.core.collectives.matching import match_collectives

Floats = NDArray[np.float64]
TRANSFER_S = 0.001
COMM = 0xABC


def shared_job(
    late_s: Floats, queue_s: Floats | float = 0.002, step_s: Floats | float = 0.1,
    ranks: Sequence[int | None] | None = None, nodes: Sequence[str | None] | None = None,
) -> Collectives:  # fmt: skip
    """Return the records of a job; delays are [rank, step, place].

    A rank enters a collective `late_s` after the earliest possible moment, and its host enqueued it
    `queue_s` before. All ranks leave together, the transfer after the last one entered. The places
    of a step end at equal distances in the first half of it; each place has a size of its own.
    """
    workers, steps, places = late_s.shape
    queue = np.broadcast_to(np.asarray(queue_s, float), late_s.shape)
    length = np.broadcast_to(np.asarray(step_s, float), (steps,))
    begin = 1.0 + np.concatenate(([0.0], np.cumsum(length)[:-1]))
    inside = length[:, None] / 2 * (1 + np.arange(places)) / places
    end = np.broadcast_to(begin[:, None] + inside, late_s.shape)
    entry = end - TRANSFER_S - (late_s.max(axis=0) - late_s)
    who, step, place = np.indices(late_s.shape)
    end_ns, entry_ns, start_ns = (
        np.round(t * 1e9).astype(np.int64).ravel() for t in (end, entry, entry - queue)
    )
    columns = {
        "who": who.ravel(), "comm": np.full(who.size, COMM), "rank": who.ravel(),
        "seq": (step * places + place).ravel(), "op": np.zeros(who.size),
        "nranks": np.full(who.size, workers), "size_bytes": (1 << 20) + place.ravel(),
        "start_ns": start_ns, "end_ns": end_ns, "gpu_duration_ns": end_ns - entry_ns,
    }  # fmt: skip
    names = ranks if ranks is not None else range(workers)
    hosts = nodes if nodes is not None else [None] * workers
    recorders = [Recorder(None, host, rank) for rank, host in zip(names, hosts, strict=True)]
    return from_columns(columns, ("AllReduce",), recorders)


def measured(columns: Collectives) -> tuple[RecordSteps, Arrivals]:
    arrivals = measure_arrivals(columns, match_collectives(columns))
    return measure_steps(columns, exact_ends=True), arrivals
