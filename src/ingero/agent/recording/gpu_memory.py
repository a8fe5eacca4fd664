"""The GPU memory that processes hold, as rows of `gpu_memory`."""

from collections.abc import Mapping, Sequence
from typing import Final

from ingero.core.recording.gpu_memory import measure_memory
from ingero.storage.trace.database import Row, insert_sql

MEMORY_EVERY_NS: Final = 10_000_000_000
MAX_PROCESSES: Final = 64  # those that hold the most
INSERT_MEMORY: Final = insert_sql(
    "gpu_memory",
    (
        "node", "timestamp", "pid", "blocks", "allocated_bytes", "reserved_bytes",
        "largest_free_bytes",
    ),
    "INSERT OR REPLACE",
)  # fmt: skip


def memory_rows(node: str, now_ns: int, held: Mapping[int, Sequence[tuple[int, int]]]) -> list[Row]:
    """Return one row per process."""
    measured = [(pid, measure_memory(blocks)) for pid, blocks in held.items()]
    measured.sort(key=lambda one: -one[1].allocated)
    return [
        (node, now_ns, pid, one.blocks, one.allocated, one.reserved, one.largest_free)
        for pid, one in measured[:MAX_PROCESSES]
    ]
