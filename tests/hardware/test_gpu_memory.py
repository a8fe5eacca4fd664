"""GPU memory, model and throttle reasons of a real driver, through NVML and through nvidia-smi."""

import shutil

import pytest

from ingero.agent.host.gpu import Gpus

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        shutil.which("nvidia-smi") is None,
        reason="needs an NVIDIA GPU, and this machine has no driver",
    ),
]


def test_both_ways_agree() -> None:
    nvml, tool = Gpus(), Gpus()
    tool._nvml, tool._smi = None, shutil.which("nvidia-smi")
    assert nvml._nvml is not None
    assert nvml.info() == tool.info()
    assert nvml.memory().headroom == pytest.approx(tool.memory().headroom, abs=0.05)
    assert nvml.throttle().keys() == tool.throttle().keys()
