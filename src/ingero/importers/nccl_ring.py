"""Read ring files of the NCCL plugin that were kept or copied, with what each has lost."""

from dataclasses import replace
from pathlib import Path

from ingero.contract.collective import CollectiveRecord
from ingero.contract.nccl_ring import MAGIC, RingCopy, decode_ring
from ingero.core.collectives.columns import Collectives, Recorder
from ingero.core.collectives.plugin_records import (
    SAME_CLOCK,
    fit_gpu_clock,
    to_collectives,
    to_records,
)
from ingero.core.counted import counted
from ingero.errors import TooLarge
from ingero.files import read_regular

MAX_FILE_BYTES = 256 * 1024 * 1024
RING_MAGIC = MAGIC.to_bytes(8, "little")


def read_ring(
    path: Path, node: str | None = None, max_bytes: int = MAX_FILE_BYTES
) -> tuple[Collectives, RingCopy]:
    """Return the collectives in a ring file, and the ring with its counters of losses."""
    try:
        data = read_regular(path, max_bytes)
    except TooLarge as error:
        raise TooLarge(f"{error}: not an NCCL ring file, which has several megabytes") from None
    return _decode(path, data, node)


def _decode(path: Path, data: bytes, node: str | None) -> tuple[Collectives, RingCopy]:
    ring = decode_ring(data, str(path))
    recorder = Recorder(ring.header.job, node, ring.header.global_rank)
    return to_collectives(ring.records, recorder, fit_gpu_clock(ring.records) or SAME_CLOCK), ring


def read_ring_records(
    path: Path, data: bytes | None = None
) -> tuple[list[CollectiveRecord], int | None, list[str]]:
    """Return the records of one process, the size of its job where known, and what is missing.

    `data` is the content where it was read already.
    """
    columns, ring = read_ring(path) if data is None else _decode(path, data, None)
    if ring.header.global_rank is None:  # the pid then distinguishes it from other processes
        columns = replace(
            columns, recorders=(Recorder(ring.header.job, f"pid {ring.header.pid}", None),)
        )
    losses = (
        (ring.overwritten, "older record was overwritten", "older records were overwritten"),
        (ring.torn, "damaged record was left out", "damaged records were left out"),
        (ring.counters["dropped"], "call was dropped by the plugin", "calls were dropped by the "
         "plugin"),
    )  # fmt: skip
    lost = [f"{path}: {counted(*loss)}" for loss in losses if loss[0]]
    return to_records(ring.records, columns), ring.header.world_size, lost
