"""What nvidia-smi prints, as memory, models and throttle reasons."""

import pytest

from ingero.agent.host.gpu import GpuMemory, parse_memory, parse_names, parse_throttle
from ingero.core.health.observation import GpuInfo
from ingero.errors import Unavailable


def test_nvidia_smi_memory_vector_75() -> None:
    memory = parse_memory("4096, 16384\n\n8192, 16384\n")
    assert (memory, memory.headroom) == (GpuMemory(12288 << 20, 32768 << 20), 0.625)


@pytest.mark.parametrize(
    "text", ["4096", "1, 2, 3", "a, b", "0, 0", "-1, 16384", "", "\n", "4096, 16384\nx, y", "١, ٢"]
)
def test_nvidia_smi_garbage_vector_76(text: str) -> None:
    with pytest.raises(Unavailable):
        parse_memory(text)


def test_nvidia_smi_throttle() -> None:
    text = "GPU-a, 0x0000000000000044\nGPU-b, [Not Supported]\n\nGPU-c, 4\nGPU-d, N/A\n"
    assert parse_throttle(text) == {"GPU-a": 0x44, "GPU-c": 4}
    for garbage in ("", "GPU-a", "GPU-a, x", "GPU-a, -1", ", 4"):
        with pytest.raises(Unavailable):
            parse_throttle(garbage)


def test_nvidia_smi_names() -> None:
    assert parse_names("NVIDIA H200\nNVIDIA H200\n") == GpuInfo("NVIDIA H200", 2)
    with pytest.raises(Unavailable):
        parse_names("\n")
