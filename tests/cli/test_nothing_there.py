"""Commands without a recording: `--json` is an empty list, never null, and no file is made."""

import json
from pathlib import Path

import pytest

from ingero.__main__ import main as run
from ingero.storage.trace.database import TraceDb


@pytest.mark.parametrize(
    "args",
    [
        ["explain"],
        ["explain", "--replay"],
        ["explain", "--per-process"],
        ["explain", "--annotations"],
        ["explain", "--last", "10"],
        ["query"],
        ["query", "SELECT 1 WHERE 0"],
        ["query", "--op", "cudaMalloc"],
    ],
    ids=" ".join,
)
def test_nothing_found_is_an_empty_list_must_31(
    args: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    TraceDb(tmp_path / "t.db", "n").close()
    cannot_tell = args[0] == "explain" and "--per-process" not in args
    assert run([*args, "-d", str(tmp_path / "t.db"), "--json"]) == (3 if cannot_tell else 0)
    assert json.loads(capsys.readouterr().out) == []


def test_demo_needs_no_store_must_59(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("INGERO_DB", "/proc/no/place/t.db")
    monkeypatch.setenv("HOME", str(tmp_path / "nowhere"))
    assert run(["demo", "--no-gpu", "memcpy-bottleneck", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["scenario"] == "memcpy-bottleneck"
    assert not (tmp_path / "nowhere").exists()


def test_a_test_alert_without_a_configuration_says_how_to_name_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["alert", "test", "pager"]) == 2
    told = "fleet-config.yaml does not exist; name Fleet's configuration with --config\n"
    assert capsys.readouterr().err.endswith(told)
