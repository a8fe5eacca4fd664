"""CPU and memory of the host, from /proc."""

from pathlib import Path

import pytest

from ingero.agent.host import proc
from ingero.errors import Unavailable


def test_cpu_availability(tmp_path: Path) -> None:
    (tmp_path / "stat").write_text("cpu 100 0 100 700 100 0 0 0 0 0\ncpu0 …\n")
    first = proc.read_cpu_times(tmp_path)
    assert proc.cpu_availability(None, first) == 1.0
    (tmp_path / "stat").write_text("cpu 160 0 120 720 100 0 0 0 0 0\n")
    assert proc.cpu_availability(first, proc.read_cpu_times(tmp_path)) == pytest.approx(0.2)
    (tmp_path / "stat").write_text("nonsense")
    with pytest.raises(Unavailable):
        proc.read_cpu_times(tmp_path)


def test_host_memory(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 1000 kB\nMemFree: 1 kB\nMemAvailable: 250 kB\n")
    assert proc.host_memory_headroom(tmp_path) == 0.25
    (tmp_path / "meminfo").write_text("MemTotal: 0 kB\nMemAvailable: 0 kB\n")
    assert proc.host_memory_headroom(tmp_path) == 0.0
    with pytest.raises(Unavailable):
        proc.host_memory_headroom(tmp_path / "none")
