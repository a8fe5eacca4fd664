"""One collective of several ranks, as columns."""

import numpy as np

from ingero.core.collectives.columns import Collectives, Recorder, from_columns

MS = 1_000_000


def collective(
    durations_ms: list[float],
    *,
    entries_ms: list[float] | None = None,
    seq: int = -1,
    gpu: bool = False,
    comm: int = 1,
) -> Collectives:
    """Return one row per rank, each with its duration and entry."""
    count = len(durations_ms)
    entry = np.round(np.array(entries_ms or [0.0] * count) * MS).astype(np.int64)
    duration = np.round(np.array(durations_ms) * MS).astype(np.int64)
    columns = {
        "who": np.arange(count), "comm": np.full(count, comm), "seq": np.full(count, seq),
        "op": np.zeros(count), "rank": np.arange(count), "nranks": np.full(count, count),
        "start_ns": entry, "end_ns": entry + duration,
        "gpu_duration_ns": duration if gpu else np.full(count, -1),
    }  # fmt: skip
    return from_columns(
        columns, ["AllReduce"], [Recorder(None, f"n{rank}", rank) for rank in range(count)]
    )
