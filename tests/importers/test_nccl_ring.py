"""Reading ring files that were kept."""

import pytest
from tests.support.ring_model import ModelRing

from ingero.errors import ForeignFile, TooLarge
from ingero.importers.nccl_ring import read_ring


def test_a_kept_ring_becomes_collectives(tmp_path):
    ring = ModelRing(tmp_path / "ring", slots=8)
    for _ in range(5):
        ring.write()
    columns, copy = read_ring(ring.path, "node-9")
    assert columns.seq.tolist() == [0, 1, 2, 3, 4]
    assert columns.recorders == (("job-1", "node-9", 7),)
    assert copy.torn == 0


def test_other_files_are_refused(tmp_path):
    path = tmp_path / "x"
    path.write_bytes(b"z" * 9000)
    with pytest.raises(ForeignFile):
        read_ring(path)
    with pytest.raises(TooLarge):
        read_ring(path, max_bytes=100)
