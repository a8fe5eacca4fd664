"""`ingero merge`: what it prints, for people and for programs."""

import json
from pathlib import Path

import pytest
from tests.support.trace_databases import database

from ingero.cli.dispatch import run


def test_each_file_the_total_and_what_to_know_are_printed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, other = (
        database(tmp_path / "a.db", "a"),
        database(tmp_path / "b.db", "a", events=2, start_ns=5),
    )
    assert run(["merge", str(one), str(other), "-o", str(tmp_path / "out.db")]) == 0
    printed = capsys.readouterr()
    assert printed.out == ""
    assert printed.err.splitlines() == [
        f"  {one}          3 events      0 chains      0 stacks",
        f"WARNING: {one}: 1 stacks larger than 64 KiB were left out",
        f"  {other}          2 events      0 chains      0 stacks",
        f"WARNING: {other}: 1 stacks larger than 64 KiB were left out",
        f"WARNING: {other}: 2 events got new numbers: "
        "other events of a node of that name had theirs",
        f"{tmp_path / 'out.db'}: 5 events, 0 chains, 0 unique stacks from 1 node(s)",
    ]


def test_what_was_there_already_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    older, newer = database(tmp_path / "a.db", "a", events=2), database(tmp_path / "b.db", "a")
    assert run(["merge", str(newer), str(older), "-o", str(tmp_path / "out.db")]) == 0
    assert (
        f"  {older}          0 events      0 chains      0 stacks  "
        "(2 events of it were there already)" in (capsys.readouterr().err.splitlines())
    )


def test_json_has_the_whole_summary(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = database(tmp_path / "a.db", "a")
    assert run(["merge", str(source), "-o", str(tmp_path / "out.db"), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["events"], summary["nodes"], summary["possible_skew"]) == (3, ["a"], [])
    assert summary["files"][0]["path"] == str(source)
    assert summary["files"][0]["oversized_stacks"] == 1
