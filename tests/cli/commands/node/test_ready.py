"""`ingero ready engine` as an exec probe: 0 ready, 1 not ready, 2 wrong usage."""

import json
from pathlib import Path

import pytest
from tests.support.waiting import until

from ingero.cli.dispatch import run
from ingero.sim.inference.engine import Load
from ingero.sim.inference.replicas import EngineProcess


def test_the_exit_status_tells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """F166."""
    with EngineProcess(tmp_path) as engine:
        probe = ["ready", "engine", "--port", str(engine.port), "--within", "1s", "--json"]
        assert run(probe) == 0
        assert json.loads(capsys.readouterr().out) == {"ready": True, "why": "vllm is idle"}
        engine.set_load(Load(running=1, step_s=0.01))
        until(lambda: run(probe) == 0 and "makes steps" in capsys.readouterr().out)
        engine.hang()
        until(lambda: run(probe) == 1)
    assert run(probe[:-1]) == 1
    assert "not ready: nothing listens" in capsys.readouterr().out


def test_wrong_usage_is_2() -> None:
    assert run(["ready", "engine"]) == 2
    assert run(["ready", "engine", "--port", "0"]) == 2
