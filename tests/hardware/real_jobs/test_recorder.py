"""Recordings of rings survive packing and unpacking, record by record."""

from pathlib import Path

import pytest
from tests.hardware.real_jobs import archive
from tests.hardware.real_jobs.archive import pack, unpack
from tests.hardware.real_jobs.recorder import Recorder
from tests.hardware.real_jobs.replay import find_jobs
from tests.support.ring_model import ModelRing

from ingero.contract.nccl_ring import RECORD, decode_ring

SLOTS = 2048


def test_a_recording_holds_what_the_rings_held_at_the_end_of_each_phase(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rings = tmp_path / "rings"
    rings.mkdir()
    models = [ModelRing(rings / f"ingero-nccl-{pid}-7", SLOTS, pid=pid) for pid in (41, 42)]
    recorder = Recorder(rings)
    for name, count in (("healthy", 900), ("rank_1_gpu", 1700)):
        for model in models:
            for _ in range(count):
                model.write()
        recorder.mark(name)
    recorder.close()
    monkeypatch.setattr(archive, "PART_BYTES", 1_000)
    files = {"truth.json": b"{}"}
    parts = pack(recorder.heads, recorder.records(), recorder.marks, files, tmp_path, "ddp")
    assert [part.name for part in parts] == ["ddp-1.tar", "ddp-2.tar"]
    assert unpack(parts, tmp_path / "out") == ["healthy", "rank_1_gpu"]
    assert (tmp_path / "out" / "truth.json").read_bytes() == b"{}"
    for name, count in (("healthy", 900), ("rank_1_gpu", 2600)):
        for pid in (41, 42):
            path = tmp_path / "out" / name / f"ingero-nccl-{pid}-7"
            ring = decode_ring(path.read_bytes(), str(path))
            assert ring.header.pid == pid
            assert (len(ring.records), ring.overwritten, ring.torn) == (count, 0, 0)
            assert ring.records["stamp"].tolist() == list(range(1, count + 1))
    for model in models:
        model.close()
    assert sum(part.stat().st_size for part in parts) < 2 * 2600 * RECORD.itemsize / 4
    assert find_jobs([tmp_path]) == {"ddp": parts}
