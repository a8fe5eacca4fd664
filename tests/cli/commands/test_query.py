"""`ingero query` on a local database."""

import csv
import io
import json
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.shared_data import shared

from ingero.cli.dispatch import run
from ingero.sim.samples import write_samples


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_samples(tmp_path_factory.mktemp("samples"))[0]


def query(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[str, str]:
    assert run(["query", *map(str, args)]) == 0
    captured = capsys.readouterr()
    return captured.out, captured.err


def test_sql_gives_an_aligned_table(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = query(
        capsys, "-d", shared("data/ingero/sample-cluster.db"), "--raw",
        "SELECT node, source, count(*) as cnt FROM events GROUP BY node, source LIMIT 2",
    )  # fmt: skip
    assert (
        out == "node         source  cnt\n-----------  ------  ---\n"
        "gpu-node-01  3       99\ngpu-node-01  5       101\n"
    )
    assert err == "\n  2 rows\n"
    _, err = query(capsys, "-d", shared("data/ingero/sample-cluster.db"), "SELECT 1")
    assert err == "\n  1 row\n"


def test_filters(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = query(
        capsys, "-d", trace, "--op", "cudastreamsync", "--pid", 1880, "--limit", 2, "--json"
    )
    rows = json.loads(out)
    assert [
        (row["node"], row["pid"], row["process"], row["source"], row["op"]) for row in rows
    ] == [("gpu-node-01", 1880, "python3", "cuda", "cudaStreamSync")] * 2
    assert rows[0]["time"] > rows[1]["time"]


def test_filters_work_on_files_without_node_and_comm(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = query(
        capsys,
        "-d",
        shared("data/ingero/vllm-37343-logprobs-amplification.db"),
        "--op",
        "cudaDeviceSync",
        "--json",
    )
    assert len(json.loads(out)) == 10


def test_csv(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = query(capsys, "-d", trace, "--format", "csv", "SELECT 'a,b' AS x, 1 AS y")
    assert list(csv.reader(io.StringIO(out))) == [["x", "y"], ["a,b", "1"]]


def test_columns_of_one_name_are_all_there(trace: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = query(capsys, "-d", trace, "--json", "SELECT 1 AS id, 2 AS id_2, 3 AS id, 4 AS id")
    assert json.loads(out) == [{"id": 1, "id_2": 2, "id_3": 3, "id_4": 4}]


def test_a_long_cell_does_not_widen_every_row(
    trace: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long = "printf('%900s', 'x')"
    out, _ = query(
        capsys, "-d", trace, f"SELECT {long} AS text, 1 AS n UNION ALL SELECT 'short', 2"
    )
    lengths = [len(line) for line in out.splitlines()]
    assert lengths == [203, 203, 903, 203]


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
        (["DELETE FROM events"], "only queries are allowed"),
        (
            ["SELECT * FROM nowhere"],
            "no such table: nowhere; the tables are: annotations, causal_chains,",
        ),
        (
            ["SELECT colour FROM events"],
            "no such column: colour; `SELECT name FROM pragma_table_info('events')`",
        ),
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


def test_rolled_files_and_annotations_go_with_filters(
    trace: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.db"
    shutil.copy(trace, path)
    shutil.copy(trace, tmp_path / "t.20260115T120000.000000001Z-00c0ffee.db")
    connection = sqlite3.connect(path)
    connection.execute("DELETE FROM events WHERE op != 5 OR source != 1")
    connection.execute(
        "INSERT INTO annotations (timestamp, labels, span_start, span_end) "
        'VALUES (1, \'{"step": "7"}\', 1, ?)',
        (2**62,),
    )
    connection.commit()
    connection.close()
    alone = json.loads(query(capsys, "-d", path, "--json", "--annotations")[0])
    assert {row["annotations"] for row in alone} == {'{"step": "7"}'}
    both = json.loads(
        query(capsys, "-d", path, "--json", "--annotations", "--include-rolled", "--limit", 10_000)[
            0
        ]
    )
    assert len(both) > len(alone)
    assert both[: len(alone)] == alone
    assert {row["annotations"] for row in both[len(alone) :]} == {""}
    out, err = query(capsys, "-d", path, "--json", "--include-rolled", "--limit", len(alone))
    assert len(json.loads(out)) == len(alone) and "there are more" in err


@pytest.mark.parametrize("option", ["--annotations", "--include-rolled"])
def test_they_do_not_go_with_sql(
    trace: Path, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["query", "-d", str(trace), option, "SELECT 1"]) == 2
    assert "go with filters, not with SQL" in capsys.readouterr().err


def test_f152_asking_nodes_does_not_load_numpy() -> None:
    """A good part of the time a fan-out may take would be gone before the first node is asked."""
    modules = "ingero.cli.commands.query, ingero.cli.commands.query_nodes"
    script = f"import sys, {modules}; print('numpy' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", script], check=True, capture_output=True, text=True
    )
    assert done.stdout == "False\n"
