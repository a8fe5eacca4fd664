"""Collective records of a window as columns, matched across ranks, for the NCCL and cost tools."""

import asyncio
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from ingero.contract.collective import MAX_RANKS
from ingero.core.collectives.columns import Collectives, Floats, Ints, Recorder, from_columns
from ingero.core.collectives.waiting import Waiting, measure_waiting
from ingero.echo.tools.asker import Asker, Column

MAX_RECORDS: Final = 200_000
NEARLY_ALL: Final = 0.999
_TABLE: Final = 8  # times as many keys as rows: up to here a table takes less time than a sort
_WHERE: Final = "FROM nccl_ops WHERE cluster_id = $1 AND received_ts >= make_timestamp($2)"
_COUNT: Final = f"SELECT count(*) {_WHERE}"
_FROM_US: Final = f"SELECT approx_quantile(epoch_us(received_ts), $3) {_WHERE}"
# what no collective can have: nothing can be computed with it, and one row must not spoil an answer
MAX_MS: Final = 1e12  # 30 years
_SOUND: Final = f"""rank >= 0 AND nranks BETWEEN 1 AND {MAX_RANKS}
  AND coalesce(duration_ms, 0) BETWEEN 0 AND {MAX_MS:.0f}
  AND coalesce(gpu_duration_ns, 0) BETWEEN 0 AND {MAX_MS * 1e6:.0f}
  AND abs(coalesce(lateness_ms, 0)) <= {MAX_MS:.0f}"""
_COLUMNS: Final = f"""SELECT node_id, job_id, coalesce(global_rank, rank) AS global_rank, rank,
  nranks, coalesce(comm_id_hash, '') AS comm, comm_seq, op_type, peer, bytes, gpu_duration_ns,
  stream, lateness_ms, coalesce(provider, '') AS provider, coalesce(gpu_model, '') AS gpu_model,
  epoch_ns(ts) AS end_ns,
  coalesce(epoch_ns(start_ts), epoch_ns(ts) - (duration_ms * 1e6)::BIGINT) AS start_ns, duration_ms,
  weight
{_WHERE} AND received_ts >= make_timestamp($3) AND ts IS NOT NULL AND op_type IS NOT NULL
  AND {_SOUND}"""


@dataclass(frozen=True, slots=True)
class Records:
    """Columns of records.

    `price_code` is an index into `prices`: provider and GPU model of the rank that recorded the
    row.
    """

    collectives: Collectives
    waiting: Waiting
    duration_ms: Floats
    price_code: Ints
    prices: list[tuple[str, str]]
    total: int
    notes: list[str]

    @property
    def is_cut(self) -> bool:
        """Whether older records of the window were left out."""
        return self.total > MAX_RECORDS

    @property
    def wait_ms(self) -> Floats:
        """How long ranks waited, for all collectives that each record stands for; 0 if unknown."""
        return np.nan_to_num(self.waiting.wait_ms) * self.waiting.weight

    def collectives_in(self, rows: Ints) -> int:
        """Return how many collectives these records are about, across ranks."""
        groups = self.waiting.groups[rows]
        _, of_row, ranks = np.unique(groups, return_inverse=True, return_counts=True)
        return round(float((self.waiting.weight[rows] / ranks[of_row]).sum()))

    @property
    def estimated_from(self) -> float | None:
        """The share of all collectives that was sent; None where all of them were."""
        stood_for = float(self.waiting.weight.sum())
        share = len(self.waiting.weight) / stood_for
        return share if share < NEARLY_ALL else None


async def load_records(asker: Asker, cluster: str, window: str) -> Records | None:
    """Return the newest records of the window, or None if there are none."""
    params: list[Any] = [cluster, asker.since_us(window)]
    columns = await asker.columns(_COLUMNS, [*params, params[1]], MAX_RECORDS + 1)
    total, notes = len(columns["rank"].data), []
    if total > MAX_RECORDS:
        ((total,),) = (await asker.query(_COUNT, params)).rows
        share = 1.0 - MAX_RECORDS / total
        first = int((await asker.query(_FROM_US, [*params, share])).rows[0][0])
        columns = await asker.columns(_COLUMNS, [*params, first], MAX_RECORDS + MAX_RECORDS // 10)
        notes.append(
            f"computed from about the newest {MAX_RECORDS} of {total} records; use a shorter "
            "window for all"
        )
    if not len(columns["rank"].data):
        return None
    return await asyncio.to_thread(_measure, columns, int(total), notes)


def _measure(columns: dict[str, Column], total: int, notes: list[str]) -> Records:
    who, recorders = _recorders(columns)
    data = {
        "who": who,
        "comm": columns["comm"].data,
        "seq": columns["comm_seq"].data,
        "op": columns["op_type"].data,
        "size_bytes": columns["bytes"].data,
        **{
            name: columns[name].data
            for name in ("rank", "nranks", "peer", "start_ns", "end_ns", "stream")
        },
        "gpu_duration_ns": columns["gpu_duration_ns"].data,
    }
    collectives = from_columns(data, columns["op_type"].values or [], recorders)
    price_code, prices = _pairs(columns["provider"], columns["gpu_model"])
    waiting = measure_waiting(collectives, columns["lateness_ms"].data, columns["weight"].data)
    found = Records(
        collectives, waiting, columns["duration_ms"].data, price_code, prices, total, notes
    )
    share = found.estimated_from
    if share is not None:
        notes.append(
            f"estimated: agents sent {share:.1%} of all collectives, each with the number that it "
            "stands for"
        )
    return found


def _recorders(columns: dict[str, Column]) -> tuple[Ints, list[Recorder]]:
    job, node, rank = columns["job_id"], columns["node_id"], columns["global_rank"].data
    first, codes = _distinct(job.data, node.data, rank)
    recorders = [
        Recorder(
            _named(job, int(job.data[i])),
            _named(node, int(node.data[i])),
            None if rank[i] < 0 else int(rank[i]),
        )
        for i in first
    ]
    return codes, recorders


def _pairs(left: Column, right: Column) -> tuple[Ints, list[tuple[str, str]]]:
    first, codes = _distinct(left.data, right.data)
    return codes, [
        (_named(left, int(left.data[i])) or "", _named(right, int(right.data[i])) or "")
        for i in first
    ]


def _distinct(*columns: Ints) -> tuple[Ints, Ints]:
    """Return the first row of each distinct combination, and for each row the number of its own.

    -1 counts as a value.
    """
    key = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        low, high = int(column.min()), int(column.max())
        if low == high:
            continue
        codes, span = column.astype(np.int64) - low, high - low + 1
        if span > len(codes):  # of at most a few 100,000 rows: the key has room
            values, codes = np.unique(column, return_inverse=True)
            span = len(values)
        key = key * span + codes
    if int(key.max()) > _TABLE * len(key):
        _, first, numbers = np.unique(key, return_index=True, return_inverse=True)
        return first, numbers
    place = np.full(int(key.max()) + 1, -1)
    place[key[::-1]] = np.arange(len(key))[::-1]  # of rows with one key the first is written last
    is_there = place >= 0
    return place[is_there], (np.cumsum(is_there) - 1)[key]


def _named(column: Column, code: int) -> str | None:
    return (column.values or [])[code] if code >= 0 else None
