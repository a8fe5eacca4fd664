"""Read step traces: one Parquet row per operation of one worker in one step."""

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from ingero.compiled import install_command
from ingero.contract.collective import MAX_RANKS
from ingero.core.blame.step_trace import Node, StepTrace
from ingero.errors import MalformedInput, TooLarge, Unavailable
from ingero.files import regular_stream

MAX_ROWS = 20_000_000
# All workers run one schedule, so a table much larger than its rows has columns of another meaning.
MAX_CELLS = 2 * MAX_ROWS
MAX_OPTYPES = 10_000
MAX_THRIFT = 16 << 20  # of a text or list in the description of a file
OPTIONAL = ("mc", "gmc")
REQUIRED = ("dp_rank", "stage", "rank", "step", "optype", "start_ts", "duration", "seq_id")

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _Columns:
    """The columns of a trace, one value per operation; `optype` numbers the `labels`."""

    replica: Ints
    stage: Ints
    rank: Ints
    step: Ints
    seq: Ints
    chunk: Ints
    place: Ints
    optype: Ints
    labels: list[str]
    start_s: NDArray[np.float64]
    duration_s: NDArray[np.float64]


def read_steps(path: Path, problems: list[str] | None = None) -> StepTrace:
    """Read the trace of one job.

    Operations without a value that is needed are left out, and counted in `problems`.
    """
    try:
        import pyarrow  # noqa: PLC0415  # optional dependency
        import pyarrow.parquet  # noqa: PLC0415  # optional dependency
    except ImportError as error:
        raise Unavailable(
            f"{path} is Parquet, which needs pyarrow: {install_command('parquet')}"
        ) from error
    try:
        with regular_stream(path) as file:
            table = _good_rows(path, _read_table(path, file), problems)
            columns = _columns(path, table)
    except (pyarrow.ArrowException, OSError) as error:
        raise MalformedInput(f"{path}: not a readable Parquet file ({error})") from error
    except (ValueError, TypeError, OverflowError, AttributeError) as error:
        raise MalformedInput(f"{path}: a column holds values of another kind ({error})") from error
    return _assemble(path, columns)


def _read_table(path: Path, file: BinaryIO) -> Any:  # pyarrow has no types
    """Return the columns of a step trace; sizes are checked before anything is unpacked."""
    import pyarrow.parquet  # noqa: PLC0415  # optional dependency

    parquet = pyarrow.parquet.ParquetFile(
        file, thrift_string_size_limit=MAX_THRIFT, thrift_container_size_limit=MAX_THRIFT
    )
    names = parquet.schema_arrow.names
    missing = [name for name in REQUIRED if name not in names]
    if missing:
        raise MalformedInput(
            f"{path}: column {missing[0]!r} is missing; a step trace has {', '.join(REQUIRED)}"
        )
    rows = parquet.metadata.num_rows
    if rows > MAX_ROWS:
        raise TooLarge(f"{path}: {rows} operations, at most {MAX_ROWS}; cut it by step")
    if rows <= 0:
        raise MalformedInput(f"{path}: contains no operation")
    wanted = [name for name in (*REQUIRED, *OPTIONAL) if name in names]
    table = parquet.read(columns=wanted, use_threads=False)
    if table.num_rows != rows or len(table.column_names) != len(wanted):
        raise MalformedInput(f"{path}: its rows or columns are not those that it announces")
    return table


def _good_rows(path: Path, table: Any, problems: list[str] | None) -> Any:
    """Return the table without operations that lack a value, a time or a possible rank."""
    import pyarrow  # noqa: PLC0415  # optional dependency

    good = np.ones(table.num_rows, bool)
    for name in REQUIRED:
        good &= table.column(name).is_valid().to_numpy()
    for name in ("start_ts", "duration"):
        good &= np.isfinite(_seconds(table, name))
    rank = np.nan_to_num(table.column("rank").to_numpy().astype(np.float64), nan=-1.0)
    good &= (rank >= 0) & (rank < MAX_RANKS)
    bad = int((~good).sum())
    if bad == len(good):
        raise MalformedInput(f"{path}: no operation has a rank in range and all of its values")
    if bad and problems is not None:
        problems.append(
            f"{path}: {bad} of {len(good)} operations are left out; "
            f"the first lacks a value in row {int(np.argmin(good))}"
        )
    return table.filter(pyarrow.array(good)) if bad else table


def _columns(path: Path, table: Any) -> _Columns:
    stage = _ints(path, table, "stage")
    has_chunk, has_place = "mc" in table.column_names, "gmc" in table.column_names
    optype, labels = _optypes(table.column("optype").combine_chunks())
    return _Columns(
        replica=_ints(path, table, "dp_rank"),
        stage=stage,
        rank=_ints(path, table, "rank"),
        step=_ints(path, table, "step"),
        seq=_ints(path, table, "seq_id"),
        chunk=_ints(path, table, "mc") if has_chunk else np.zeros(table.num_rows, np.int64),
        place=_ints(path, table, "gmc") if has_place else stage,
        optype=optype,
        labels=labels,
        start_s=_seconds(table, "start_ts"),
        duration_s=_seconds(table, "duration"),
    )


def _ints(path: Path, table: Any, name: str) -> Ints:
    column = table.column(name)
    if column.null_count:
        raise MalformedInput(f"{path}: column {name!r} has {column.null_count} empty values")
    values: Ints = column.to_numpy().astype(np.int64)
    return values


def _seconds(table: Any, name: str) -> NDArray[np.float64]:
    values: NDArray[np.float64] = table.column(name).to_numpy().astype(np.float64)
    return values


def _optypes(column: Any) -> tuple[Ints, list[str]]:
    """Return operation types as codes, and the label of each code."""
    is_coded = hasattr(column, "dictionary")
    coded = column if is_coded else column.dictionary_encode("encode")
    if len(coded.dictionary) > MAX_OPTYPES:
        raise ValueError(f"{len(coded.dictionary)} types of operation, at most {MAX_OPTYPES}")
    if coded.indices.null_count:
        raise ValueError(f"'optype' has {coded.indices.null_count} empty values")
    labels = [str(label) for label in coded.dictionary.to_pylist()]
    codes = coded.indices.to_numpy(zero_copy_only=False).astype(np.int64)
    if is_coded:
        return codes, labels
    in_order, place = np.unique(np.array(labels), return_inverse=True)
    return place[codes], [str(label) for label in in_order]


def _assemble(path: Path, columns: _Columns) -> StepTrace:
    """Turn rows into arrays over replica × step; incomplete steps are dropped and counted."""
    replicas, replica = np.unique(columns.replica, return_inverse=True)
    stages, stage = np.unique(columns.stage, return_inverse=True)
    steps, step = np.unique(columns.step, return_inverse=True)
    key = np.stack([stage, columns.optype, columns.seq])
    found, first, node = np.unique(key, axis=1, return_index=True, return_inverse=True)
    shape = (found.shape[1], len(replicas), len(steps))
    if math.prod(shape) > MAX_CELLS:
        sizes = f"{shape[0]} operations × {shape[1]} replicas × {shape[2]} steps"
        raise TooLarge(f"{path}: {sizes}; cut it by step")
    start, duration = np.full(shape, np.nan), np.full(shape, np.nan)
    start[node.reshape(-1), replica, step] = columns.start_s
    duration[node.reshape(-1), replica, step] = columns.duration_s
    # An operation that most steps lack is not part of the schedule.
    is_common = np.isfinite(duration).mean(axis=(1, 2)) > 0.5
    start, duration, first = start[is_common], duration[is_common], first[is_common]
    is_whole = np.isfinite(duration).all(axis=(0, 1))
    if not is_common.any() or not is_whole.any():
        raise MalformedInput(
            f"{path}: every step lacks an operation of some worker, so no step can be compared"
        )
    ranks = np.full((len(replicas), len(stages)), -1, np.int64)
    ranks[replica, stage] = columns.rank
    start, duration = start[:, :, is_whole], duration[:, :, is_whole]
    start -= start.min(axis=(0, 1))
    return StepTrace(
        tuple(_node(columns, int(stage[row]), row) for row in first.tolist()),
        start,
        duration,
        tuple(int(s) for s in steps[is_whole]),
        ranks,
        _guess_world(ranks),
        int((~is_whole).sum()),
    )


def _node(columns: _Columns, stage: int, row: int) -> Node:
    return Node(
        stage=stage,
        optype=columns.labels[columns.optype[row]],
        seq=int(columns.seq[row]),
        chunk=int(columns.chunk[row]),
        place=int(columns.place[row]),
    )


def _guess_world(ranks: Ints) -> int:
    """Return the number of GPUs: workers are numbered by their first GPU."""
    flat = np.unique(ranks)
    stride = int(np.gcd.reduce(np.diff(flat))) if len(flat) > 1 else 1
    return int(flat[-1]) + stride
