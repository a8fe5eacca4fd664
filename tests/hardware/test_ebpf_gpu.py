"""F067, F068: tracing on a real GPU, see ebpf_gpu.py. Takes six minutes."""

import importlib.util
import os
import subprocess
from pathlib import Path

import pytest


@pytest.mark.gpu
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_counts_cost_and_governor_on_a_real_gpu() -> None:
    if not Path("/dev/nvidiactl").exists():
        pytest.skip("no NVIDIA GPU here")
    if os.geteuid() or importlib.util.find_spec("torch") is None:
        pytest.skip("the GPU tests need root and PyTorch")
    subprocess.run([str(Path(__file__).parent / "run.sh")], check=True)
