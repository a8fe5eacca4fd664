"""When `ingero top` opens, and what it prints where it cannot."""

import asyncio
import importlib.util
import sys
from pathlib import Path

import pytest
from tests.support.pushes import running

from ingero import __main__ as main
from ingero.cli.dispatch import run


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("INGERO_CONFIG", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def on_terminal(monkeypatch: pytest.MonkeyPatch, *, is_terminal: bool = True) -> None:
    for stream in (sys.stdin, sys.stdout):
        monkeypatch.setattr(stream, "isatty", lambda: is_terminal)


def test_ingero_alone_opens_it_where_a_fleet_is_configured(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    opened: list[list[str]] = []
    monkeypatch.setattr("ingero.cli.dispatch.run", lambda args: opened.append(args) or 0)
    on_terminal(monkeypatch)
    assert main.main([]) == 0
    assert not opened and "Usage: ingero COMMAND" in capsys.readouterr().out
    (home / "ingero.yaml").write_text("fleet: {endpoint: 'https://fleet:4317'}")
    assert main.main([]) == 0
    assert opened == [["top"]]
    on_terminal(monkeypatch, is_terminal=False)
    assert main.main([]) == 0
    assert opened == [["top"]], "without a terminal: the help"
    (home / "ingero.yaml").write_text("not a configuration")
    on_terminal(monkeypatch)
    assert main.main([]) == 0, "the help comes also where the configuration is wrong"


async def test_without_a_terminal_or_the_extra_it_is_status(
    home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async with running() as fleet:
        url = f"http://{fleet.addresses['threshold']}"
        assert await asyncio.to_thread(run, ["top", "--fleet", url]) == 3
        assert capsys.readouterr().out.startswith(f"no cluster has pushed to {url} yet")
        find = importlib.util.find_spec
        monkeypatch.setattr(
            importlib.util, "find_spec", lambda name: None if name == "textual" else find(name)
        )
        on_terminal(monkeypatch)
        assert await asyncio.to_thread(run, ["top", "--fleet", url]) == 3
        said = capsys.readouterr()
        assert "needs textual" in said.err and "[tui]" in said.err
        assert said.out.startswith("no cluster has pushed")
