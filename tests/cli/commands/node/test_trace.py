"""`ingero trace`: names, options and screen; recordings are tested on real processes."""

import json
import re
import socket
from pathlib import Path

import numpy as np
import pytest
from tests.support.trace_events import MS, events

from ingero.agent.ebpf.policy import TracePolicy
from ingero.agent.recording.app import TraceView
from ingero.agent.recording.recorder import TracedEvents
from ingero.cli.commands.node.trace import node_name, trace_policy
from ingero.cli.commands.node.trace_options import Pids
from ingero.cli.dispatch import run
from ingero.cli.params import Size
from ingero.cli.show import chains, trace, wrap
from ingero.cli.show.trace import event_lines, heartbeat_line, render_view
from ingero.config.ingero import AgentConfig, IngeroConfig
from ingero.config.loader import load_text
from ingero.contract.chain import Chain, Severity
from ingero.contract.timestamps import rfc3339_ns
from ingero.core.chains.evidence import SystemSample
from ingero.core.recording.latency import OpSummary
from ingero.core.recording.stacks import Frame
from ingero.errors import ConfigError
from ingero.storage.trace.database import RecordingState

CONFIG = load_text(IngeroConfig, "agent: {node: from-config}", "ingero.yaml")


def test_node_name_by_flag_then_configuration_then_host() -> None:
    """F132."""
    assert node_name("flag", CONFIG) == "flag"
    assert node_name(None, CONFIG) == "from-config"
    assert node_name(None, IngeroConfig()) == socket.gethostname()


def test_a_colon_in_the_node_name_is_refused() -> None:
    """F132: it separates the parts of an event id."""
    with pytest.raises(ConfigError, match="colon"):
        node_name("gpu:1", IngeroConfig())
    with pytest.raises(ConfigError, match="colon"):
        load_text(IngeroConfig, "agent: {node: 'gpu:1'}", "ingero.yaml")


@pytest.mark.parametrize(
    ("text", "size"), [("10g", 10 << 30), ("500MB", 500 << 20), ("1024", 1024), ("0", 0)]
)
def test_sizes(text: str, size: int) -> None:
    assert Size().convert(text, None, None) == size


def test_pids() -> None:
    assert Pids().convert("7,8,7", None, None) == (7, 8)


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["--pid", "x"], "not a process id"),
        (["--pid", "0"], "not a process id"),
        (
            ["--pid", "4194305"],
            "--pid: process 4194305 is not running",
        ),  # no kernel gives out a larger one
        (["--max-db", "much"], "not a size"),
        (["--duration", "soon"], "not a duration"),
        (["--deadband", "150"], "150"),
    ],
)
def test_wrong_options_are_sentences(
    args: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["trace", *args]) == 2
    assert message in capsys.readouterr().err


def view(**changes: object) -> TraceView:
    sync = OpSummary((1, 5), 200, 16 * MS, 142 * MS, 20 * MS, MS, 150 * MS, 4_000 * MS, 7, 3, 50)
    values: dict[str, object] = {
        "wall_s": 10.0,
        "sample": SystemSample(1, 97.0, 40.0, 9000, 12, 3.5),
        "operations": [sync],
        "chains": [],
        "processes": {7: "train\x1b[2J"},
        "events": 1000,
        "stored": 100,
        "collectives": 5,
        "anomalies": 3,
        "losses": {"calls": 0, "host": 0},
        "dropped_rows": 0,
        "failed_rows": 0,
        "state": RecordingState.RECORDING,
        "notes": [],
    }
    return TraceView(**(values | changes))  # type: ignore[arg-type]


def test_the_screen_shows_operations_and_pressure() -> None:
    text = render_view(view())
    row = next(line for line in text.splitlines() if "cudaStreamSync" in line)
    assert re.split(r" {2,}", row.strip()) == [
        "cudaStreamSync", "train\\x1b[2J 7", "200", "16 ms", "20 ms", "142 ms", "150 ms", "40.0",
        "3! every ~50",
    ]  # fmt: skip
    assert "97%!" in text
    assert "swap 12 MB!" in text
    assert "100 rows, recording" in text
    assert "\x1b" not in text


def test_the_screen_fits_a_narrow_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    chain = Chain(
        name="x", severity=Severity.HIGH, summary="cudaStreamSync slow " * 5, root_cause="",
        explanation="", recommendations=("wait for the other job " * 4, "pin"), timeline=(),
    )  # fmt: skip
    for module in (trace, chains, wrap):
        monkeypatch.setattr(module, "screen_columns", lambda: 50)
    lines = render_view(view(chains=[chain])).splitlines()
    tables = [line for line in lines if "load" not in line and "records" not in line]
    assert max(map(len, tables)) <= 50
    assert lines[-1] == "       pin"
    assert next(line for line in lines if line.startswith("[HIGH]")).endswith("slow")


def test_the_screen_says_what_is_lost_and_why_nothing_is_recorded() -> None:
    text = render_view(
        view(losses={"calls": 400, "host": 0}, state=RecordingState.DISK_FULL, failed_rows=12)
    )
    assert "lost: calls=400" in text
    assert "more than 5% of the records were lost" in text
    assert "not recording (disk-full): make room; 12 rows lost so far" in text
    assert "off: tcp: no such tracepoint" in render_view(view(notes=["tcp: no such tracepoint"]))


def test_json_lines() -> None:
    columns = events("cudaMemcpyAsync", 1, MS, at=1_700_000_000_123_456_789, arg0=4096, arg1=1)
    traced = TracedEvents(
        columns, np.array([2]), np.array([b"train"]), np.array([4]), {4: (0x1000,)}
    )
    [line] = event_lines(traced, np.array([True]), {})
    assert json.loads(line) == {
        "timestamp": "2023-11-14T22:13:20.123456789Z",
        "pid": 1000,
        "tid": 1000,
        "process_name": "train",
        "source": "cuda",
        "op": "cudaMemcpyAsync",
        "duration_ns": MS,
        "duration": "1.0ms",
        "gpu_id": 2,
        "args": [4096, 1],
        "return_code": 0,
        "cgroup_id": 0,
        "anomaly": True,
        "stack": [{"ip": "0x1000"}],
    }
    python = [
        Frame(0x1000, "cudaMemcpyAsync+0x4", "/x/libcudart.so"),
        Frame(py_file="t.py", py_func="step", py_line=7),
    ]
    [named] = event_lines(traced, np.array([True]), {}, lambda pid, tid, addresses: python)
    assert json.loads(named)["stack"] == [
        {"symbol": "cudaMemcpyAsync+0x4", "file": "/x/libcudart.so"},
        {"py_file": "t.py", "py_func": "step", "py_line": 7},
    ]
    beat = json.loads(heartbeat_line(view(), 0))
    assert (beat["type"], beat["timestamp"], beat["state"]) == (
        "heartbeat",
        rfc3339_ns(0),
        "recording",
    )


def test_help_has_examples(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(["trace", "--help"]) == 0
    assert "sudo ingero trace --node gpu-node-01" in capsys.readouterr().out


def test_the_budget_of_probing_is_a_setting() -> None:
    def policy(config: IngeroConfig) -> TracePolicy:
        return trace_policy(config, pids=None, record_all=False, stacks=True, without={"tcp"})

    assert policy(IngeroConfig()).budget_share == 0.01
    changed = policy(IngeroConfig(agent=AgentConfig(max_overhead_percent=2.5)))
    assert (changed.budget_share, "tcp" in changed.layers, "block" in changed.layers) == (
        0.025,
        False,
        True,
    )
