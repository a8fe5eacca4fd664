"""Collectives of a few ranks, row by row: links and roles are found in them."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ingero.core.blame.roles import find_roles
from ingero.core.blame.transfer import SlowLink, find_slow_links, measure_transfers
from ingero.core.collectives.columns import Collectives, Recorder, from_columns

OPS = ("AllReduce", "AllGather", "Send", "Recv")


NAMES = ("who", "comm", "seq", "op", "rank", "nranks", "peer", "size_bytes", "start_ns", "end_ns")


Row = dict[str, int]


def columns(rows: Sequence[Row], ranks: int = 16) -> Collectives:
    table = {name: [row.get(name, -1) for row in rows] for name in NAMES}
    return from_columns(table, OPS, [Recorder(None, None, 100 + n) for n in range(ranks)])


def call(
    members: Sequence[int], comm: int, seq: int, transfer_us: float, wait_us: float = 0.0,
    op: str = "AllReduce", size: int = 1000,
) -> list[Row]:  # fmt: skip
    """Return one collective; all members but the last one waited for it."""
    end = 1_000_000 * (seq + 1)
    rows = []
    for at, who in enumerate(members):
        waited = 0.0 if at == len(members) - 1 else wait_us
        start = end - round(1e3 * (transfer_us + waited))
        rows.append(
            {"who": who, "comm": comm, "seq": seq, "op": OPS.index(op), "rank": at,
             "nranks": len(members), "size_bytes": size, "start_ns": start, "end_ns": end}
        )  # fmt: skip
    return rows


def links(given: Collectives, step_s: float = 0.01, steps: int = 4) -> list[SlowLink]:
    return within(given, np.zeros(len(given), np.intp), steps, step_s)


def within(
    given: Collectives, row_step: NDArray[np.intp], steps: int, step_s: float
) -> list[SlowLink]:
    return list(find_slow_links(measure_transfers(given, row_step), 0, steps, step_s))


def roles(rows: Sequence[Row], ranks: int) -> list[int]:
    return find_roles(columns(rows), range(ranks)).tolist()
