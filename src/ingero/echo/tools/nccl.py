"""Collectives in summary: which operation, which rank, how late, how fast."""

from typing import Annotated, Any

import msgspec
import numpy as np
from msgspec import Meta

from ingero.core.collectives.columns import Floats, Ints
from ingero.core.collectives.waiting import find_late
from ingero.core.counted import counted
from ingero.core.robust import median
from ingero.echo.tools.asker import Answered, Asked, Asker, Limit, question
from ingero.echo.tools.records import Records, load_records


class NcclQuestion(Asked, kw_only=True):
    """How the collectives of a cluster perform."""

    op: (
        Annotated[
            str, Meta(description="Only this operation, for example AllReduce.", max_length=64)
        ]
        | None
    ) = None
    limit: Limit = 20


class OpRollup(msgspec.Struct):
    """One operation over all ranks.

    Bandwidth is message size over the time of the rank that waited least.
    """

    op: str
    collectives: int
    records: int
    ranks: int
    bytes: int
    p50_ms: float
    p99_ms: float
    waited_rank_seconds: float
    gigabytes_per_s: float | None


class RankRollup(msgspec.Struct):
    """One rank in one operation.

    `late_times` counts collectives in which the others clearly waited for it.
    """

    op: str
    node_id: str | None
    rank: int | None
    collectives: int
    bytes: int
    lateness_p50_ms: float | None
    lateness_max_ms: float | None
    peer_lag_p50_ms: float | None
    late_times: int
    caused_rank_seconds: float


class LateRank(msgspec.Struct):
    """The rank that the others wait for; `period` is the number of operations between stalls."""

    node_id: str | None
    rank: int | None
    job_id: str | None
    times: int
    lateness_ms: float
    share_of_waiting: float
    period: int | None


class NcclAnswer(Answered, kw_only=True):
    """Operations first, then ranks by the waiting they caused.

    `late` is null if no rank stands out. `estimated` means that agents sent a sample: counts, bytes
    and times are those of all collectives that it stands for; `records` are those that were sent.
    """

    ops: list[OpRollup]
    ranks: list[RankRollup]
    late: LateRank | None
    records: int
    incomplete_collectives: int
    estimated: bool = False


@question
async def nccl_summary(asker: Asker, asked: NcclQuestion) -> NcclAnswer:
    """NCCL collectives by operation and rank: bytes, bandwidth, lateness, and the late rank.

    A late rank has the shortest time inside a collective, because it does not wait. Lateness
    reverses that: positive means late. `late` names the rank to look at and, if its stalls repeat,
    their period.
    """
    cluster = await asker.cluster(asked.cluster_id, asked.window)
    loaded = await load_records(asker, cluster, asked.window)
    if loaded is None:
        return _no_records(cluster, asked.window)
    ops = [
        rollup
        for code in range(len(loaded.collectives.ops))
        if (rollup := _op(loaded, code, asked.op)) is not None
    ]
    ranks = sorted(
        _ranks(loaded, asked.op),
        key=lambda rank: (-rank.caused_rank_seconds, rank.op, rank.rank or 0),
    )
    missing = len(np.unique(loaded.waiting.groups[~loaded.waiting.lag.is_quorate]))
    notes = list(loaded.notes)
    if missing:
        notes.append(
            f"{counted(missing, 'collective lacks', 'collectives lack')} the records of most "
            "ranks; only their bytes are counted"
        )
    if len(ranks) > asked.limit:
        notes.append(f"{len(ranks) - asked.limit} more ranks; name an op or raise limit")
    return NcclAnswer(
        cluster_id=cluster,
        window=asked.window,
        truncated=len(ranks) > asked.limit or loaded.is_cut,
        notes=notes,
        ops=sorted(ops, key=lambda op: -op.waited_rank_seconds),
        ranks=ranks[: asked.limit],
        late=_late(loaded),
        records=len(loaded.collectives),
        incomplete_collectives=missing,
        estimated=loaded.estimated_from is not None,
    )


def _no_records(cluster: str, window: str) -> NcclAnswer:
    note = f"no collective arrived in the window {window}; agents send them with the NCCL plugin"
    return NcclAnswer(
        cluster_id=cluster,
        window=window,
        notes=[note],
        ops=[],
        ranks=[],
        late=None,
        records=0,
        incomplete_collectives=0,
    )


def _op(loaded: Records, code: int, wanted: str | None) -> OpRollup | None:
    c, waiting = loaded.collectives, loaded.waiting
    rows = np.flatnonzero(c.op == code)
    if not len(rows) or not _is_wanted(c.ops[code], wanted):
        return None
    duration = _duration_ms(loaded)[rows]
    moved = (c.size_bytes[rows] > 0) & (waiting.lag.transfer_ms[rows] > 0)
    speed = c.size_bytes[rows][moved] / waiting.lag.transfer_ms[rows][moved] / 1e6
    return OpRollup(
        op=c.ops[code],
        collectives=loaded.collectives_in(rows),
        records=len(rows),
        ranks=len(np.unique(c.who[rows])),
        bytes=_bytes(loaded, rows),
        p50_ms=round(float(np.median(duration)), 6),
        p99_ms=round(float(np.percentile(duration, 99)), 6),
        waited_rank_seconds=round(float(loaded.wait_ms[rows].sum()) / 1e3, 6),
        gigabytes_per_s=round(float(np.median(speed)), 6) if len(speed) else None,
    )


def _ranks(loaded: Records, wanted: str | None) -> list[RankRollup]:
    c, waiting = loaded.collectives, loaded.waiting
    total_wait = np.bincount(waiting.groups, loaded.wait_ms)
    caused = np.where(waiting.is_last, total_wait[waiting.groups], 0.0) / 1e3
    late_times = waiting.is_last * waiting.weight
    rollups = []
    key = c.op.astype(np.int64) * (len(c.recorders) + 1) + c.who
    for rows in _split(key):
        op, who = c.ops[c.op[rows[0]]], c.recorders[c.who[rows[0]]]
        if not _is_wanted(op, wanted):
            continue
        rollups.append(
            RankRollup(
                op=op,
                node_id=who.node,
                rank=who.global_rank,
                collectives=round(float(waiting.weight[rows].sum())),
                bytes=_bytes(loaded, rows),
                lateness_p50_ms=_median(waiting.lateness_ms[rows]),
                lateness_max_ms=_largest(waiting.lateness_ms[rows]),
                peer_lag_p50_ms=_median(waiting.lag.peer_lag_ms[rows]),
                late_times=round(float(late_times[rows].sum())),
                caused_rank_seconds=round(float(caused[rows].sum()), 6),
            )
        )
    return rollups


def _late(loaded: Records) -> LateRank | None:
    late = find_late(loaded.collectives, loaded.waiting)
    if late is None:
        return None
    who = loaded.collectives.recorders[late.who]
    lateness, share = round(late.lateness_ms, 3), round(late.share, 4)
    return LateRank(who.node, who.global_rank, who.job, late.times, lateness, share, late.period)


def _split(key: Ints) -> list[np.ndarray[Any, Any]]:
    """Return row numbers by key."""
    order = np.argsort(key, kind="stable")
    return np.split(order, np.flatnonzero(np.diff(key[order])) + 1)


def _is_wanted(op: str, wanted: str | None) -> bool:
    return wanted is None or op.lower() == wanted.lower().removeprefix("nccl")


def _bytes(loaded: Records, rows: np.ndarray[Any, Any]) -> int:
    sizes = np.maximum(loaded.collectives.size_bytes[rows], 0)
    weight = loaded.waiting.weight[rows]
    # whole numbers are added as such: bytes of a long window exceed what a float holds exactly
    return int(sizes.sum()) if (weight == 1.0).all() else round(float((sizes * weight).sum()))


def _duration_ms(loaded: Records) -> Floats:
    own = loaded.collectives.duration_ns / 1e6
    return np.where(
        loaded.collectives.is_gpu_timed | np.isnan(loaded.duration_ms), own, loaded.duration_ms
    )


def _median(values: Floats) -> float | None:
    known = values[~np.isnan(values)]
    return round(median(known), 6) if len(known) else None


def _largest(values: Floats) -> float | None:
    known = values[~np.isnan(values)]
    return round(float(known.max()), 6) if len(known) else None
