"""Engines are recognised by how they are started, and by the titles of their children."""

import pytest

from ingero.agent.engines.names import CommandLine, may_be_asked, read_command_line
from ingero.contract.measurements.engines import EngineKind

VLLM, SGLANG = EngineKind.VLLM, EngineKind.SGLANG


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("/v/bin/python /v/bin/vllm serve meta/Llama --port=8001", (VLLM, 8001, "meta/Llama")),
        ("python /v/bin/vllm serve dir --served-model-name tiny", (VLLM, 8000, "tiny")),
        ("python -m vllm.entrypoints.openai.api_server --model m", (VLLM, 8000, "m")),
        ("python -m sglang.launch_server --model-path q --port 30001", (SGLANG, 30001, "q")),
        ("/usr/bin/sglang serve --model-path q", (SGLANG, 30000, "q")),
        ("python /usr/bin/trtllm-serve phi --port 9", (EngineKind.TENSORRT_LLM, 9, "phi")),
        ("trtllm-serve serve phi", (EngineKind.TENSORRT_LLM, 8000, "phi")),
        ("tritonserver --model-repository /m", (EngineKind.TRITON, 8002, "")),
        ("text-generation-launcher --model-id b -p 80", (EngineKind.TGI, 80, "b")),
    ],
)
def test_servers_are_recognised(line: str, expected: tuple[EngineKind, int, str]) -> None:
    found = read_command_line(line.split())
    assert (found.kind, found.port, found.model) == expected
    assert found.is_server


@pytest.mark.parametrize(
    ("title", "kind"),
    [
        ("VLLM::EngineCore", VLLM),
        ("VLLM::Worker_TP1", VLLM),
        ("mine::EngineCore_DP0", VLLM),
        ("sglang::scheduler_TP0", SGLANG),
        ("sglang::detokenizer", SGLANG),
    ],
)
def test_renamed_children_are_recognised_and_are_no_servers(title: str, kind: EngineKind) -> None:
    assert read_command_line([title]) == CommandLine(kind)


@pytest.mark.parametrize(
    "line",
    ["", "python train.py --model vllm", "vim vllm", "grep -r vllm serve.py", "python -m http"],
)
def test_other_programs_are_not_recognised(line: str) -> None:
    assert read_command_line(line.split()).kind is None


def test_a_port_out_of_range_is_not_believed() -> None:
    assert read_command_line("vllm serve m --port 99999".split()).port == 8000
    assert read_command_line("vllm serve m --port".split()).port == 8000


def test_ports_of_unknown_processes_are_not_asked_unless_an_engine_would_use_them() -> None:
    stranger = read_command_line("python worker.py --port 5000".split())
    assert may_be_asked(5000, stranger)
    assert may_be_asked(8000, stranger)
    assert not may_be_asked(29500, stranger)  # the store of a training job
    assert may_be_asked(29500, read_command_line("vllm serve m".split()))
