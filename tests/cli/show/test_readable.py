"""Tables of `ingero query` for people."""

from pathlib import Path

import pytest
from tests.support.asking import calls, trace

from ingero.cli.dispatch import run
from ingero.cli.show.readable import readable_columns, readable_rows


def test_codes_have_names_and_times_have_units() -> None:
    columns = ["timestamp", "source", "op", "duration", "pid", "n"]
    row = [1_700_000_000_123_000_000, 1, 5, 154_635_043, 42, 7]
    [shown] = readable_rows(columns, [row])
    at = "2023-11-14T22:13:20.123000Z"
    assert shown == [at, "1 cuda", "5 cudaStreamSync", "154.6 ms", 42, 7]


def test_what_is_not_a_code_stays() -> None:
    rows = [["x", None, 3], [5, 2.5, "cudaFree"]]
    assert readable_rows(["timestamp", "duration", "op"], rows) == rows


def test_raw_shows_the_stored_integers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    db = trace(tmp_path / "t.db", calls(1))
    sql = "SELECT timestamp, source, op, duration FROM events"
    shown = {}
    for options in ([], ["--raw"], ["--format", "csv"], ["--json"]):
        assert run(["query", "-d", str(db), *options, sql]) == 0
        shown[tuple(options)] = capsys.readouterr().out
    assert shown[()].splitlines()[-1].split("  ")[1:] == ["1 cuda", "5 cudaStreamSync", "1 ms"]
    for options in (("--raw",), ("--format", "csv"), ("--json",)):
        assert "1000000000000000000" in shown[options]
        assert "cudaStreamSync" not in shown[options]


def test_a_column_with_units_is_not_called_nanoseconds() -> None:
    assert readable_columns(["start_ns", "duration_ns", "arg0"]) == ["start", "duration", "arg0"]
    assert readable_columns(["duration", "duration_ns"]) == ["duration", "duration_ns"]
