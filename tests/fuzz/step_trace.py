"""Step traces in Parquet: a trace that can be blamed, or a clear error."""

from functools import cache

import pyarrow as pa
import pyarrow.parquet
from tests.support.fuzzing import file_with, folder, patched

from ingero.core.blame.steps import blame_steps
from ingero.errors import IngeroError
from ingero.importers.steps import read_steps

ROWS = 16
INTEGERS = ("dp_rank", "stage", "rank", "step", "seq_id")


@cache
def _sound() -> bytes:
    return _written({name: [row % 2 for row in range(ROWS)] for name in INTEGERS})


def _written(columns: dict[str, list[int]]) -> bytes:
    path = folder() / "sound.parquet"
    table = pa.table(
        columns
        | {
            "optype": ["forward-compute"] * ROWS,
            "start_ts": [float(row) for row in range(ROWS)],
            "duration": [1.0] * ROWS,
        }
    )
    pa.parquet.write_table(table, path, compression="none", use_dictionary=False)
    return path.read_bytes()


def fuzz(data: bytes) -> None:
    """The first byte chooses between other numbers in the columns and other bytes in the file."""
    if not data:
        return
    if data[0] % 2:
        content = patched(_sound(), data[1:])
    else:
        numbers = [
            int.from_bytes(data[at : at + 2], "little", signed=True) for at in range(1, 161, 2)
        ]
        content = _written(
            {name: numbers[at * ROWS : (at + 1) * ROWS] for at, name in enumerate(INTEGERS)}
        )
    path = file_with(content, "trace.parquet")
    try:
        blame_steps(read_steps(path))
    except IngeroError:
        return
