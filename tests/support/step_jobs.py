"""Synthetic step traces of pipeline schedules, plain and interleaved 1F1B."""

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ingero.core.blame.step_trace import Node, StepTrace

FORWARD, BACKWARD = "forward", "backward"


@dataclass(kw_only=True)
class StepJob:
    pp: int = 4
    dp: int = 4
    tp: int = 2
    chunks: int = 1
    micro: int = 8
    steps: int = 12
    forward_s: float = 0.3
    noise: float = 0.01
    chronic: float = 0.002
    # (replica, stage): factor on its compute
    slow: dict[tuple[int, int], float] = field(default_factory=dict)
    stage_factor: dict[int, float] = field(default_factory=dict)
    imbalance: float = 0.0  # spread of the length of micro-batches
    seed: int = 1


def trace_rows(job: StepJob) -> list[dict[str, Any]]:
    """Every operation of every worker in every step."""
    rng = np.random.default_rng(job.seed)
    level = np.exp(rng.normal(0, job.chronic, (job.dp, job.pp)))
    rows: list[dict[str, Any]] = []
    for step in range(job.steps):
        done, gathered = [], {}
        for replica in range(job.dp):
            lengths = (
                np.exp(rng.normal(0, job.imbalance, job.micro))
                if job.imbalance
                else np.ones(job.micro)
            )
            replica_rows, ends = _pipeline(job, rng, replica, lengths, level[replica])
            done.append((replica, replica_rows, ends))
            gathered[replica] = ends
        rows += _finish(job, rng, step * 3 + 5, done)
    return rows


def as_trace(rows: list[dict[str, Any]], gpus_per_worker: int = 1) -> StepTrace:
    """The rows as arrays; every worker must have every operation in every step."""
    keys = sorted({(row["stage"], row["optype"], row["seq_id"]) for row in rows})
    node = {key: at for at, key in enumerate(keys)}
    steps = sorted({row["step"] for row in rows})
    replicas = 1 + max(row["dp_rank"] for row in rows)
    stages = 1 + max(row["stage"] for row in rows)
    start = np.full((len(keys), replicas, len(steps)), np.nan)
    duration, ranks = start.copy(), np.zeros((replicas, stages), np.int64)
    nodes: dict[int, Node] = {}
    for row in rows:
        at = node[row["stage"], row["optype"], row["seq_id"]]
        place = (at, row["dp_rank"], steps.index(row["step"]))
        start[place], duration[place] = row["start_ts"], row["duration"]
        nodes[at] = Node(row["stage"], row["optype"], row["seq_id"], row["mc"], row["gmc"])
        ranks[row["dp_rank"], row["stage"]] = row["rank"]
    assert np.isfinite(start).all()
    in_order = tuple(nodes[at] for at in range(len(keys)))
    return StepTrace(in_order, start, duration, tuple(steps), ranks, ranks.size * gpus_per_worker)


def write_parquet(path: Path, rows: list[dict[str, Any]]) -> Path:
    """The rows as a Parquet file of the public form."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.Table.from_pylist(rows), path)
    return path


def _order(job: StepJob, stage: int) -> list[tuple[str, int, int]]:
    """(direction, chunk, micro-batch) in the order a stage computes them."""
    total = job.micro * job.chunks
    warm = (
        job.pp - stage - 1
        if job.chunks == 1
        else (job.pp - stage - 1) * 2 + (job.chunks - 1) * job.pp
    )
    warm = min(total, warm)

    def place(k: int, direction: str) -> tuple[str, int, int]:
        chunk = k // job.pp % job.chunks
        return (
            direction,
            chunk if direction == FORWARD else job.chunks - 1 - chunk,
            (k // (job.pp * job.chunks) * job.pp + k % job.pp),
        )

    order = [place(k, FORWARD) for k in range(warm)]
    for k in range(total - warm):
        order += [place(k + warm, FORWARD), place(k, BACKWARD)]
    return order + [place(k, BACKWARD) for k in range(total - warm, total)]


class _Log:
    """The operations of one replica, as the job records them."""

    def __init__(self, job: StepJob, replica: int) -> None:
        self.rows: list[dict[str, Any]] = []
        self._job, self._replica = job, replica
        self._seq: Counter[tuple[int, str]] = Counter()

    def put(self, stage: int, optype: str, start: float, end: float, chunk: int, mb: int) -> None:
        self.rows.append(
            {
                "dp_rank": self._replica,
                "stage": stage,
                "optype": optype,
                "start_ts": start,
                "duration": end - start,
                "seq_id": self._seq[stage, optype],
                "mc": chunk,
                "mb_id": mb,
                "gmc": chunk * self._job.pp + stage if chunk >= 0 else -1,
            }
        )
        self._seq[stage, optype] += 1


def _pipeline(
    job: StepJob, rng: np.random.Generator, replica: int, lengths: np.ndarray, level: np.ndarray
) -> tuple[list[dict[str, Any]], list[float]]:
    places = job.chunks * job.pp
    orders = [_order(job, s) for s in range(job.pp)]
    at, free = [0] * job.pp, [0.05] * job.pp
    ready: dict[tuple[str, int, int], float] = {}
    log = _Log(job, replica)
    for stage in range(job.pp):
        log.put(stage, "params-all-gather", 0.0, 0.05, 0, -1)
    while any(at[s] < len(orders[s]) for s in range(job.pp)):
        moved = False
        for stage in range(job.pp):
            if at[stage] >= len(orders[stage]):
                continue
            direction, chunk, mb = orders[stage][at[stage]]
            place = chunk * job.pp + stage
            before = place - 1 if direction == FORWARD else place + 1
            first = place == 0 if direction == FORWARD else place == places - 1
            key = (direction, before, mb)
            if not first and key not in ready:
                continue
            begin = free[stage]
            if not first:
                begin = max(free[stage], ready[key]) + 0.001
                log.put(stage, f"{direction}-recv", free[stage], begin, chunk, mb)
            elif job.chunks > 1:
                # recorded, never launched
                log.put(stage, f"{direction}-recv", free[stage], free[stage] + 1e-5, chunk, mb)
            work = (
                job.forward_s
                / job.chunks
                * (1.0 if direction == FORWARD else 2.0)
                * lengths[mb]
                * level[stage]
            )
            work *= job.slow.get((replica, stage), 1.0) * job.stage_factor.get(stage, 1.0)
            end = begin + work * np.exp(rng.normal(0, job.noise))
            log.put(stage, f"{direction}-compute", begin, end, chunk, mb)
            ready[direction, place, mb] = end
            if 0 <= (place + 1 if direction == FORWARD else place - 1) < places or job.chunks > 1:
                log.put(stage, f"{direction}-send", end, end + 0.001, chunk, mb)
            free[stage], at[stage], moved = end, at[stage] + 1, True
        assert moved, "the schedule deadlocks"
    return log.rows, free


def _finish(
    job: StepJob, rng: np.random.Generator, step: int, done: list[Any]
) -> list[dict[str, Any]]:
    rows = [row for _, replica_rows, _ in done for row in replica_rows]
    clock = {(replica, stage): ends[stage] for replica, _, ends in done for stage in range(job.pp)}

    def put(optype: str, length: float, stages: range, across: bool, over_stages: bool) -> None:
        starts = dict(clock)
        for replica in range(job.dp):
            for stage in stages:
                members = [
                    starts[r, s]
                    for r in range(job.dp)
                    for s in stages
                    if (across or r == replica) and (over_stages or s == stage)
                ]
                end = max(members) + length * np.exp(rng.normal(0, 0.01))
                start = starts[replica, stage]
                rows.append(
                    {
                        "dp_rank": replica,
                        "stage": stage,
                        "optype": optype,
                        "start_ts": start,
                        "duration": end - start,
                        "seq_id": 0,
                        "mc": 0 if "reduce-scatter" in optype else -1,
                        "mb_id": -1,
                        "gmc": -1,
                    }
                )
                clock[replica, stage] = end

    everyone, edges = range(job.pp), range(0, job.pp, max(1, job.pp - 1))
    put("gc", 0.002, everyone, across=False, over_stages=False)
    put("layernorm-grads-all-reduce", 0.003, everyone, across=False, over_stages=False)
    put("embedding-grads-all-reduce", 0.004, edges, across=False, over_stages=True)
    put("grads-reduce-scatter", 0.02, everyone, across=True, over_stages=False)
    put("optimizer-clip-main-grad", 0.004, everyone, across=True, over_stages=True)
    put("optimizer", 0.01, everyone, across=False, over_stages=False)
    for row in rows:
        row["step"] = step
        row["rank"] = (row["stage"] * job.dp + row["dp_rank"]) * job.tp
    return rows
