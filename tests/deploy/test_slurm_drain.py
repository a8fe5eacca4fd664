"""Which nodes the opt-in program drains: confident ones, within limits, and never by default."""

import importlib.util
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

PROGRAM = Path(__file__).parents[2] / "deploy" / "slurm" / "drain_stragglers.py"
NOW = 10_000.0
IDLE = ("IDLE", "")


@pytest.fixture(scope="module")
def drain() -> ModuleType:
    spec = importlib.util.spec_from_file_location("drain_stragglers", PROGRAM)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def verdict(**changes: Any) -> dict[str, Any]:
    return {
        "episode": "e1",
        "state": "straggler",
        "node": "gpu-2",
        "class": "compute",
        "since": NOW - 300,
        "confidence": 0.97,
        "loss": 0.12,
    } | changes


def named(
    drain: ModuleType, *verdicts: dict[str, Any], arguments: tuple[str, ...] = ()
) -> list[str]:
    status = {"clusters": [{"cluster_id": "train", "verdicts": list(verdicts)}]}
    return [node for node, _ in drain.candidates(status, drain.parse(arguments), NOW)]


def test_a_confident_verdict_is_a_candidate_with_a_reason(drain: ModuleType) -> None:
    status = {"clusters": [{"cluster_id": "train", "verdicts": [verdict()]}]}
    assert drain.candidates(status, drain.parse([]), NOW) == [
        ("gpu-2", "ingero: compute straggler, job loses 12%, 97% sure, episode e1")
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"state": "suspect"},
        {"state": "late"},
        {"state": "resolved"},
        {"confidence": 0.89},
        {"confidence": None},
        {"class": "structural"},
        {"class": "hang"},
        {"engine": "vllm 8000 4711"},
        {"silenced": "until noon"},
        {"since": NOW - 60},
        {"node": "gpu-2 state=down"},
    ],
)
def test_everything_else_is_left_alone(drain: ModuleType, changes: dict[str, Any]) -> None:
    assert named(drain, verdict(**changes)) == []


def test_the_most_confident_comes_first(drain: ModuleType) -> None:
    found = named(drain, verdict(), verdict(node="gpu-3", confidence=0.99), verdict(node="gpu-1"))
    assert found == ["gpu-3", "gpu-1", "gpu-2"]


def test_limits_count_what_was_drained_before(drain: ModuleType) -> None:
    nodes = {f"gpu-{i}": IDLE for i in range(100)}
    wanted = [("gpu-1", "a"), ("gpu-2", "b"), ("gpu-3", "c")]
    assert drain.choose(wanted, nodes, 2, 5.0) == wanted[:2]
    assert drain.choose(wanted, nodes, 10, 1.0) == wanted[:1]
    nodes["gpu-9"] = ("IDLE+DRAIN", "ingero: compute straggler")
    assert drain.choose(wanted, nodes, 1, 5.0) == []
    nodes["gpu-9"] = ("IDLE+DRAIN", "somebody else's reason")
    assert drain.choose(wanted, nodes, 1, 5.0) == wanted[:1]


def test_nodes_that_are_out_of_service_or_unknown_are_left_alone(drain: ModuleType) -> None:
    nodes = {"gpu-1": ("DOWN*", ""), "gpu-2": ("ALLOCATED+DRAIN", "disk"), "gpu-4": IDLE}
    wanted = [("gpu-1", "a"), ("gpu-2", "b"), ("gpu-3", "c"), ("gpu-4", "d")]
    assert drain.choose(wanted, nodes, 9, 100.0) == [("gpu-4", "d")]


def test_it_is_no_command_of_ours_and_a_dry_run_by_default(drain: ModuleType) -> None:
    assert (
        "drain"
        not in (PROGRAM.parents[2] / "pyproject.toml")
        .read_text()
        .split("[project.scripts]")[1]
        .split("[tool")[0]
    )
    assert drain.parse([]).drain is False
