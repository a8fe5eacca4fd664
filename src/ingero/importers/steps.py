"""Reads step traces: one Parquet row per operation of one worker in one step."""

import math
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ingero.core.blame.step_trace import Node, StepTrace
from ingero.errors import MalformedInput, TooLarge, Unavailable

MAX_ROWS = 20_000_000
MAX_CELLS = (
    2 * MAX_ROWS
)  # all run one schedule: more room than rows means that the columns are something else
REQUIRED = ("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id")


def read_steps(path: Path, world_size: int | None = None) -> StepTrace:
    """The trace of one job; `world_size` counts GPUs where a worker is a group of them."""
    table = _read_table(path)
    missing = [name for name in REQUIRED if name not in table.column_names]
    if missing:
        raise MalformedInput(
            f"{path}: column {missing[0]!r} is missing; a step trace has {', '.join(REQUIRED)}"
        )
    if table.num_rows > MAX_ROWS:
        raise TooLarge(f"{path}: {table.num_rows} operations, at most {MAX_ROWS}; cut it by step")
    if not table.num_rows:
        raise MalformedInput(f"{path}: holds no operation")
    ints = {
        name: _ints(path, table, name) for name in ("dp_rank", "stage", "rank", "step", "seq_id")
    }
    ints["chunk"] = (
        _ints(path, table, "mc")
        if "mc" in table.column_names
        else np.zeros(table.num_rows, np.int64)
    )
    ints["place"] = _ints(path, table, "gmc") if "gmc" in table.column_names else ints["stage"]
    optype = table.column("optype").combine_chunks()
    names = optype.to_pylist() if not hasattr(optype, "dictionary") else None
    if names is None:
        labels = [str(x) for x in optype.dictionary.to_pylist()]
        codes = optype.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    else:
        found, codes = np.unique(np.array([str(x) for x in names]), return_inverse=True)
        labels = [str(x) for x in found]
    times = {
        name: table.column(name).to_numpy().astype(np.float64) for name in ("start_ts", "duration")
    }
    for name, column in times.items():
        if not np.isfinite(column).all():
            raise MalformedInput(
                f"{path}: column {name!r} holds a value that is no time, in row {int(np.argmin(np.isfinite(column)))}"
            )
    return _assemble(path, ints, codes, labels, times, world_size)


def _read_table(path: Path) -> Any:  # pyarrow has no types
    try:
        import pyarrow  # noqa: PLC0415  # optional dependency
        import pyarrow.parquet  # noqa: PLC0415  # optional dependency
    except ImportError as error:
        raise Unavailable(
            f"{path} is Parquet, which needs pyarrow: pip install 'ingero[echo]'"
        ) from error
    try:
        return pyarrow.parquet.read_table(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise MalformedInput(f"{path}: not a readable Parquet file ({error})") from error


def _ints(path: Path, table: Any, name: str) -> NDArray[np.int64]:
    column = table.column(name)
    if column.null_count:
        raise MalformedInput(f"{path}: column {name!r} has {column.null_count} empty values")
    values: NDArray[np.int64] = column.to_numpy().astype(np.int64)
    return values


def _assemble(
    path: Path,
    ints: dict[str, NDArray[np.int64]],
    codes: NDArray[np.int64],
    labels: list[str],
    times: dict[str, NDArray[np.float64]],
    world_size: int | None,
) -> StepTrace:
    """Rows to arrays over replica × step; steps in which some operation is absent are left out and counted."""
    replicas, replica = np.unique(ints["dp_rank"], return_inverse=True)
    stages, stage = np.unique(ints["stage"], return_inverse=True)
    steps, step = np.unique(ints["step"], return_inverse=True)
    key = np.stack([stage, codes, ints["seq_id"]])
    columns, first, node = np.unique(key, axis=1, return_index=True, return_inverse=True)
    node = node.reshape(-1)
    shape = (columns.shape[1], len(replicas), len(steps))
    if math.prod(shape) > MAX_CELLS:
        raise TooLarge(
            f"{path}: {shape[0]} operations × {shape[1]} replicas × {shape[2]} steps; cut it by step"
        )
    start = np.full(shape, np.nan)
    duration = np.full(shape, np.nan)
    start[node, replica, step] = times["start_ts"]
    duration[node, replica, step] = times["duration"]
    # an operation that most steps lack is no part of the schedule
    common = np.isfinite(duration).mean(axis=(1, 2)) > 0.5
    start, duration, first = start[common], duration[common], first[common]
    whole = np.isfinite(duration).all(axis=(0, 1))
    if not whole.any():
        raise MalformedInput(
            f"{path}: no step has every operation of every worker; the trace has holes everywhere"
        )
    ranks = np.full((len(replicas), len(stages)), -1, np.int64)
    ranks[replica, stage] = ints["rank"]
    nodes = tuple(
        Node(
            int(stage[i]),
            labels[codes[i]],
            int(ints["seq_id"][i]),
            int(ints["chunk"][i]),
            int(ints["place"][i]),
        )
        for i in first
    )
    start, duration = start[:, :, whole], duration[:, :, whole]
    start -= start.min(axis=(0, 1))
    return StepTrace(
        nodes,
        start,
        duration,
        tuple(int(s) for s in steps[whole]),
        ranks,
        world_size or _guess_world(ranks),
        int((~whole).sum()),
    )


def _guess_world(ranks: NDArray[np.int64]) -> int:
    """Workers are numbered by their first GPU: the stride between them is the GPUs of one."""
    flat = np.unique(ranks)
    stride = int(np.gcd.reduce(np.diff(flat))) if len(flat) > 1 else 1
    return int(flat[-1]) + stride
