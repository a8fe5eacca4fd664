"""`ingero explain` on our samples and on databases of the format's own recorder."""

import json
import re
import time
from pathlib import Path
from typing import Any

import pytest
from tests.support.shared_data import shared

from ingero.cli.dispatch import run
from ingero.sim.samples import write_samples
from ingero.storage.trace.chains import UPSERT_CHAIN, chain_row, read_chains
from ingero.storage.trace.database import TraceDb, insert_sql
from ingero.storage.trace.reading import connect_readonly


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return write_samples(tmp_path_factory.mktemp("samples"), rows=None)


def explain(capsys: pytest.CaptureFixture[str], *args: object) -> str:
    status = run(["explain", *map(str, args)])
    text = capsys.readouterr().out
    is_slow = "Root cause" in text or '"root_cause"' in text
    is_table = "--per-process" in args
    assert status in ([1] if is_slow and not is_table else [0, 3]), text
    return text


def test_the_starved_node_comes_first_with_cause_and_fix(
    samples: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    """F142, F153."""
    text = explain(capsys, "-d", samples[3])
    first = text.split("\n\n")[1].splitlines()
    assert re.match(r"\[HIGH\] \[gpu-node-01\] \w+ p99=[\d.]+ (µs|ms) \([\d.]+x p50\) — ", first[0])
    assert any(line.startswith("  Root cause: high CPU utilization") for line in first)
    fix = next(line for line in first if line.startswith("  Fix: "))
    assert "taskset -acp 1-7 1880" in fix
    assert "renice -n 19 -p 812" in fix


@pytest.mark.parametrize(
    ("name", "chains"),
    [
        ("sample-gpu-node-01", 4),
        ("sample-gpu-node-02", 1),
        ("sample-cluster", 6),
        ("vllm-37343-logprobs-amplification", 6),
    ],
)
def test_recorded_chains_are_shown_as_recorded(
    name: str, chains: int, capsys: pytest.CaptureFixture[str]
) -> None:
    path = shared(f"data/ingero/{name}.db")
    found = json.loads(explain(capsys, "-d", path, "--json"))
    connection = connect_readonly(path)
    recorded = dict(
        connection.execute(
            "SELECT id, summary || root_cause || recommendations FROM causal_chains"
        ).fetchall()
    )
    connection.close()
    assert {
        chain["id"]: chain["summary"]
        + chain["root_cause"]
        + json.dumps(chain["recommendations"], ensure_ascii=False, separators=(",", ":"))
        for chain in found
    } == recorded
    assert len(found) == chains
    text = explain(capsys, "-d", path)
    assert text.count("  Root cause: ") == text.count("  Fix: ") == chains


def test_severities_come_in_order(capsys: pytest.CaptureFixture[str]) -> None:
    text = explain(capsys, "-d", shared("data/ingero/sample-cluster.db"))
    assert re.findall(r"^\[(\w+)\] \[([\w-]+)\]", text, re.M) == [
        ("HIGH", "gpu-node-01"),
        ("HIGH", "gpu-node-01"),
        ("MEDIUM", "gpu-node-03"),
        ("MEDIUM", "gpu-node-02"),
        ("MEDIUM", "gpu-node-01"),
        ("MEDIUM", "gpu-node-01"),
    ]


def by_id(chain: dict[str, Any]) -> str:
    return str(chain["id"])


def test_replay_derives_the_same_again(
    samples: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    stored = json.loads(explain(capsys, "-d", samples[0], "--json"))
    derived = json.loads(explain(capsys, "-d", samples[0], "--replay", "--json"))
    assert sorted(derived, key=by_id) == sorted(stored, key=by_id)
    assert derived[0] == stored[0], "the worst comes first"


def test_replay_keeps_nodes_apart(samples: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    derived = json.loads(explain(capsys, "-d", samples[3], "--replay", "--json"))
    stored = json.loads(explain(capsys, "-d", samples[3], "--json"))
    assert {(chain["node"], chain["cuda_op"]) for chain in derived} == {
        (chain["node"], chain["cuda_op"]) for chain in stored
    }
    assert not any("CPU utilization" in chain["root_cause"] for chain in derived), (
        "whose samples they are is not known"
    )


def test_last_and_pid_narrow_the_replay(
    samples: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    assert json.loads(explain(capsys, "-d", samples[0], "--last", 50, "--json")) == []
    assert json.loads(explain(capsys, "-d", samples[0], "--pid", 4, "--json")) == []
    assert json.loads(explain(capsys, "-d", samples[0], "--pid", 1880, "--json")) != []


def test_time_range(samples: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    after = explain(capsys, "-d", samples[0], "--from", "2026-01-15T13:00:00+00:00")
    assert "no events in this part of the trace" in after
    assert "[HIGH]" in explain(
        capsys,
        "-d",
        samples[0],
        "--from",
        "2026-01-15T12:00:00+00:00",
        "--to",
        "2026-01-15T12:01:00Z",
    )


def test_since_counts_from_now_for_the_default_database(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    samples: list[Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    source = connect_readonly(samples[0])
    chain = read_chains(source)[0].chain
    source.close()
    monkeypatch.setenv("INGERO_DB", str(tmp_path / "t.db"))
    with TraceDb(tmp_path / "t.db", "n") as db:
        db.write([(UPSERT_CHAIN, [chain_row("n", time.time_ns() - 60 * 10**9, chain)])])
    assert len(json.loads(explain(capsys, "--json"))) == 1
    assert json.loads(explain(capsys, "--since", "30s", "--json")) == []


def test_a_recording_that_ended_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("INGERO_DB", str(tmp_path / "t.db"))
    notes = []
    for ago_s in (3600, 1):
        with TraceDb(tmp_path / "t.db", "n") as db:
            db.execute(
                "INSERT OR REPLACE INTO losses VALUES (1, 'calls', 0, ?)",
                (time.time_ns() - ago_s * 10**9,),
            )
        assert run(["explain"]) == 3  # nothing was recorded
        notes.append(capsys.readouterr().err)
    assert "no recorder is running: the last one wrote 60 min" in notes[0]
    assert notes[1] == ""


def test_per_process_says_who_shares_the_gpu(
    samples: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    rows = json.loads(explain(capsys, "-d", samples[0], "--per-process", "--json"))
    sync = next(row for row in rows if row["op"] == "cudaStreamSync")
    assert (sync["node"], sync["pid"], sync["process"], sync["count"]) == (
        "gpu-node-01",
        1880,
        "python3",
        160,
    )
    table = explain(capsys, "-d", samples[0], "--per-process")
    assert table.splitlines()[0].split() == [
        "node", "pid", "process", "op", "count", "p50", "p99", "avg", "max"
    ]  # fmt: skip


def test_strings_from_a_trace_cannot_drive_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with TraceDb(tmp_path / "t.db", "n") as db:
        db.execute(
            "INSERT INTO causal_chains (id, detected_at, severity, summary, root_cause, "
            "explanation, recommendations, node) VALUES ('x', 1, 'HIGH', ?, 'b', 'c', ?, ?)",
            ("evil \x1b]0;owned\x07", '["\\u001b[2J"]', "n\x1b[31m"),
        )
    text = explain(capsys, "-d", tmp_path / "t.db")
    assert "\x1b" not in text
    assert "evil \\x1b]0;owned\\x07" in text


def test_damaged_json_in_a_chain_is_shown_as_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with TraceDb(tmp_path / "t.db", "n") as db:
        db.execute(
            "INSERT INTO causal_chains (id, detected_at, severity, summary, root_cause, "
            "explanation, recommendations, timeline) "
            "VALUES ('x', 1, 'HIGH', 's', 'r', 'e', '{broken', 'null')"
        )
    assert (
        json.loads(explain(capsys, "-d", tmp_path / "t.db", "--json"))[0]["recommendations"] == []
    )


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["-d", "nowhere.db"], "nowhere.db does not exist"),
        (["--since", "soon"], "not a duration"),
        (["--from", "yesterday"], "not a time"),
        (["--since", "5m", "--from", "12:00"], "--since excludes"),
    ],
)
def test_wrong_arguments_are_sentences(
    args: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["explain", *args]) in (2, 3)
    assert message in capsys.readouterr().err


def test_annotations_say_what_the_job_was_doing(
    samples: list[Path], tmp_path: Path, capsys
) -> None:
    """A span around the whole trace, and one about another process that must not show."""
    path = tmp_path / "t.db"
    path.write_bytes(samples[0].read_bytes())
    db = TraceDb(path, "gpu-node-01")
    for labels, pid in (({"epoch": "3", "phase": "train"}, 1880), ({"epoch": "9"}, 4)):
        row = (1, json.dumps(labels), pid, 0, 1, 2**62)
        columns = ("timestamp", "labels", "pid", "start_time", "span_start", "span_end")
        db.write([(insert_sql("annotations", columns, "INSERT"), [row])])
    db.close()
    text = explain(capsys, "-d", path, "--annotations")
    assert "  During: epoch=3, phase=train\n" in text
    assert "epoch=9" not in text
    found = json.loads(explain(capsys, "-d", path, "--annotations", "--json"))
    assert {json.dumps(chain["annotations"]) for chain in found if chain.get("pid") == 1880} == {
        '{"epoch": "3", "phase": "train"}'
    }
    assert "During" not in explain(capsys, "-d", path)
