"""`ingero ask` for programs."""

import json
from pathlib import Path

import pytest

from ingero.agent.api.tools.catalogue import AGENT_TOOLS
from ingero.cli.dispatch import run


def test_tools_and_answers_come_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ask", "--json"]) == 0
    assert [row["tool"] for row in json.loads(capsys.readouterr().out)] == [
        tool.name for tool in AGENT_TOOLS
    ]
    assert run(["ask", "get_trace_stats", "--db", str(tmp_path / "none.db"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["data"] is None
    assert "no trace on this machine" in told["text"]
