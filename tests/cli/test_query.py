"""`ingero query` on a local database."""

import csv
import io
import json
from pathlib import Path

import pytest
from tests.shared_data import shared

from ingero.cli.dispatch import run
from ingero.storage.samples import write_samples


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_samples(tmp_path_factory.mktemp("samples"))[0]


def query(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[str, str]:
    assert run(["query", *map(str, args)]) == 0
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_sql_gives_an_aligned_table(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = query(
        capsys, "-d", shared("data/ingero/sample-cluster.db"),
        "SELECT node, source, count(*) as cnt FROM events GROUP BY node, source LIMIT 2",
    )  # fmt: skip
    assert (
        out == "node         source  cnt\n-----------  ------  ---\ngpu-node-01  3       99\ngpu-node-01  5       101\n"
    )
    assert err == "\n  2 rows\n"


def test_filters(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = query(capsys, "-d", trace, "--op", "cudastreamsync", "--pid", 1880, "--limit", 2, "--json")
    rows = json.loads(out)
    assert [(row["node"], row["pid"], row["process"], row["source"], row["op"]) for row in rows] == [
        ("gpu-node-01", 1880, "python3", "cuda", "cudaStreamSync")
    ] * 2
    assert rows[0]["time"] > rows[1]["time"]


def test_filters_work_on_files_without_node_and_comm(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = query(
        capsys, "-d", shared("data/ingero/vllm-37343-logprobs-amplification.db"), "--op", "cudaDeviceSync", "--json"
    )
    assert len(json.loads(out)) == 10


def test_csv(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = query(capsys, "-d", trace, "--format", "csv", "SELECT 'a,b' AS x, 1 AS y")
    assert list(csv.reader(io.StringIO(out))) == [["x", "y"], ["a,b", "1"]]


def test_more_rows_than_asked_for_is_said(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, err = query(capsys, "-d", trace, "--limit", 5)
    assert "WARNING: there are more than 5 rows" in err
    _, err = query(capsys, "-d", trace, "--limit", 5, "SELECT id FROM events")
    assert "WARNING: there are more than 5 rows" in err


def test_nothing_found_is_said(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, err = query(capsys, "-d", trace, "SELECT id FROM events WHERE 0")
    assert (out, err) == ("", "no results\n")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["DELETE FROM events"], "only questions are allowed"),
        (["SELECT * FROM nowhere"], "no such table: nowhere"),
        (["--op", "cudaNothing"], "no operation is called 'cudaNothing'"),
        (["--pid", "1", "SELECT 1"], "write them into the SQL"),
        (["--limit", "20000", "SELECT 1"], "20000"),
    ],
)
def test_wrong_questions_are_sentences(
    trace: Path, args: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["query", "-d", str(trace), *args]) in (1, 2)
    assert message in capsys.readouterr().err
