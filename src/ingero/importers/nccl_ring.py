"""Rings of the NCCL plugin that were kept or copied, read offline."""

from pathlib import Path

from ingero.contract.nccl_ring import RingCopy, decode_ring
from ingero.core.collectives import Collectives, Recorder
from ingero.core.plugin_records import SAME_CLOCK, fit_gpu_clock, to_collectives
from ingero.errors import TooLarge

MAX_FILE_BYTES = 256 * 1024 * 1024


def read_ring(path: Path, node: str | None = None) -> tuple[Collectives, RingCopy]:
    """The collectives in a ring file, and what the ring says about itself and its losses."""
    size = path.stat().st_size
    if size > MAX_FILE_BYTES:
        raise TooLarge(f"{path}: {size} bytes are no NCCL ring; rings have some megabytes")
    ring = decode_ring(path.read_bytes(), str(path))
    recorder = Recorder(ring.header.job, node, ring.header.global_rank)
    return to_collectives(ring.records, recorder, fit_gpu_clock(ring.records) or SAME_CLOCK), ring
