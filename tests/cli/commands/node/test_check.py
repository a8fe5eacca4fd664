"""`ingero check --fleet` speaks like `ingero check`."""

import json

import pytest

from ingero.cli.dispatch import run


def test_a_fleet_out_of_reach_fails_with_what_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["check", "--fleet", "http://127.0.0.1:1", "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert not told["all_passed"]
    assert [(check["name"], check["pass"], check["optional"]) for check in told["checks"]] == [
        ("reach", False, False)
    ]
    assert run(["check", "--fleet", "http://127.0.0.1:1"]) == 1
    assert "do: check that ingero-fleet is running there" in capsys.readouterr().out
