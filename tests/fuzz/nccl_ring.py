"""Rings of the NCCL plugin with any bytes: both readers give sound records or a clear error."""

import os
from functools import cache

import numpy as np
from tests.support.fuzzing import folder, patched
from tests.support.ring_model import ModelRing

from ingero.agent.nccl.reader import RingReader
from ingero.contract.collective import checked
from ingero.contract.nccl_ring import COMM, HEADER, RECORD, record_checks
from ingero.errors import IngeroError
from ingero.importers.nccl_ring import read_ring_records

SLOTS, COMMS = 8, 2
_RECORDS_AT = HEADER.itemsize + COMMS * COMM.itemsize


@cache
def _sound() -> bytes:
    ring = ModelRing(folder() / "sound-ring", slots=SLOTS, comms=COMMS)
    for _ in range(SLOTS + 3):
        ring.write()
    ring.close()
    return (folder() / "sound-ring").read_bytes()


def fuzz(data: bytes) -> None:
    """The first byte says whether checksums are repaired and where the file is cut."""
    if not data:
        return
    content = patched(_sound(), data[1:])
    if data[0] & 1:
        records = np.frombuffer(content[_RECORDS_AT:], RECORD).copy()
        records["check"] = record_checks(records)
        content = content[:_RECORDS_AT] + records.tobytes()
    if data[0] & 2:
        content = content[: len(content) * (data[0] >> 2) // 63]
    path = folder() / f"ingero-nccl-{os.getpid()}-1"
    path.write_bytes(content)
    path.chmod(0o600)
    try:
        records, world, _ = read_ring_records(path)
        assert len(records) <= SLOTS
        assert world is None or world >= 0
        for record in records:
            checked(record)
    except IngeroError:
        pass
    _follow(path)


def _follow(path: os.PathLike[str]) -> None:
    try:
        reader = RingReader(path)  # type: ignore[arg-type]
    except IngeroError:
        return
    try:
        for now_s in (0.0, 1.0, 100.0):
            records = reader.poll(now_s, is_final=now_s == 100.0)
            assert len(records) <= SLOTS
            reader.collectives(records, "node")
        reader.counters()
        reader.comms()
    except IngeroError:
        pass
    finally:
        reader.close()
