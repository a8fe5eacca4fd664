"""Rings of the NCCL plugin that were kept or copied, read offline, with what each ring had lost."""

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
from ingero.errors import TooLarge

MAX_FILE_BYTES = 256 * 1024 * 1024
RING_MAGIC = MAGIC.to_bytes(8, "little")


def read_ring(path: Path, node: str | None = None) -> tuple[Collectives, RingCopy]:
    """The collectives in a ring file, and what the ring says about itself and its losses."""
    size = path.stat().st_size
    if size > MAX_FILE_BYTES:
        raise TooLarge(f"{path}: {size} bytes are no NCCL ring; rings have some megabytes")
    ring = decode_ring(path.read_bytes(), str(path))
    recorder = Recorder(ring.header.job, node, ring.header.global_rank)
    return to_collectives(ring.records, recorder, fit_gpu_clock(ring.records) or SAME_CLOCK), ring


def read_ring_records(path: Path) -> tuple[list[CollectiveRecord], int | None, list[str]]:
    """Records of one process, the size of its job where the ring knows it, and what is missing."""
    columns, ring = read_ring(path)
    if (
        ring.header.global_rank is None
    ):  # the process did not say: keep it apart from the others by its pid
        columns = replace(
            columns, recorders=(Recorder(ring.header.job, f"pid {ring.header.pid}", None),)
        )
    lost = (
        [f"{path}: {ring.overwritten} older records were overwritten"] if ring.overwritten else []
    )
    lost += [f"{path}: {ring.torn} records are damaged, left out"] if ring.torn else []
    dropped = ring.counters["dropped"]
    lost += [f"{path}: the plugin dropped {dropped} operations"] if dropped else []
    return to_records(ring.records, columns), ring.header.world_size, lost
