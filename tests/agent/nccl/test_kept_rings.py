"""`ingero run --keep-rings`: records outlive the job."""

import os
import subprocess
import sys
from pathlib import Path

from ingero.importers.nccl_ring import read_ring


def test_kept_rings_are_read_offline(host, plugin, tmp_path):
    kept = tmp_path / "kept"
    command = [
        sys.executable,
        "-m",
        "ingero",
        "run",
        "--keep-rings",
        kept,
        "--",
        host,
        plugin,
        "5",
        "flood",
        "40",
    ]
    subprocess.run(command, env={"PATH": os.environ["PATH"]}, input=b"\n", check=True, timeout=60)
    (ring,) = kept.iterdir()
    columns, _ = read_ring(ring)
    assert columns.size_bytes.tolist() == [2 * index for index in range(40)]
    assert not list(Path("/dev/shm").glob("ingero-run-*/" + ring.name))
