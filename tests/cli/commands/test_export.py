"""`ingero export` on the reference samples and on files of our own."""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.support.shared_data import shared
from tests.support.trace_databases import changed, database
from tests.support.waiting import PATIENCE_S

from ingero.cli.commands.export import command
from ingero.errors import StoreError
from ingero.storage.merge.merge import merge


def export(db: Path, output: Path, kind: str = "perfetto") -> Any:
    result = CliRunner().invoke(
        command, ["--format", kind, "-d", str(db), "-o", str(output)], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    return result


def test_f146_reference_samples_give_the_reference_file(tmp_path: Path) -> None:
    sources = [shared(f"data/ingero/sample-gpu-node-0{i}.db") for i in (1, 2, 3)]
    merge(sources, tmp_path / "cluster.db")
    export(tmp_path / "cluster.db", tmp_path / "out.json")
    ours = json.loads((tmp_path / "out.json").read_text())
    reference = json.loads(shared("data/ingero/sample-cluster-trace.json").read_text())
    assert len(ours) == 609
    assert ours == reference


def test_old_format_without_nodes_is_one_local_track(tmp_path: Path) -> None:
    export(shared("data/ingero/vllm-37343-logprobs-amplification.db"), tmp_path / "out.json")
    elements = json.loads((tmp_path / "out.json").read_text())
    assert elements[0]["args"] == {"name": "local"}
    assert len(elements) == 1 + 10869 + 6


def test_collectives_are_in_the_timeline(tmp_path: Path) -> None:
    export(database(tmp_path / "a.db"), tmp_path / "out.json")
    categories = [element.get("cat") for element in json.loads((tmp_path / "out.json").read_text())]
    assert categories.count("nccl") == 1


def test_native_export_has_every_event(tmp_path: Path) -> None:
    from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as schema

    export(shared("data/ingero/sample-cluster.db"), tmp_path / "out.pftrace", "perfetto-proto")
    trace = schema.Trace.FromString((tmp_path / "out.pftrace").read_bytes())
    begins = [p for p in trace.packet if p.track_event.type == schema.TrackEvent.TYPE_SLICE_BEGIN]
    assert len(begins) == 600


def test_unwritable_output_is_a_sentence_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot write"):
        CliRunner().invoke(
            command,
            [
                "--format",
                "perfetto",
                "-d",
                str(database(tmp_path / "a.db")),
                "-o",
                str(tmp_path / "no" / "x"),
            ],
            catch_exceptions=False,
        )


def test_the_database_is_never_written_over(tmp_path: Path) -> None:
    path = database(tmp_path / "a.db")
    before = path.read_bytes()
    link, same = tmp_path / "link.db", tmp_path / "same.db"
    link.symlink_to(path)
    same.hardlink_to(path)
    for source, output in ((path, path), (path, link), (link, path), (path, same)):
        with pytest.raises(StoreError, match="the trace database itself"):
            CliRunner().invoke(
                command,
                ["--format", "perfetto", "-d", str(source), "-o", str(output)],
                catch_exceptions=False,
            )
    assert path.read_bytes() == before


def test_without_a_name_the_timeline_lies_here(tmp_path: Path, monkeypatch: Any) -> None:
    database(tmp_path / "a.db")
    monkeypatch.setenv("INGERO_DB", str(tmp_path / "a.db"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(command, ["--format", "perfetto"], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    assert isinstance(json.loads((tmp_path / "ingero-trace.json").read_text()), list)


def test_a_pipe_takes_the_timeline_as_it_comes_and_a_link_stays_one(tmp_path: Path) -> None:
    db, pipe, link = database(tmp_path / "a.db"), tmp_path / "pipe", tmp_path / "link.json"
    os.mkfifo(pipe)
    taken: list[str] = []
    reader = threading.Thread(target=lambda: taken.append(pipe.read_text()), daemon=True)
    reader.start()
    export(db, pipe)
    reader.join(PATIENCE_S)
    assert pipe.is_fifo()
    (tmp_path / "far").mkdir()
    link.symlink_to(tmp_path / "far" / "trace.json")
    export(db, link)
    assert link.is_symlink()
    assert json.loads(link.read_text()) == json.loads(taken[0])
    assert sorted(file.name for file in (tmp_path / "far").iterdir()) == ["trace.json"]


def test_every_time_is_in_the_timeline_unless_asked_otherwise(tmp_path: Path) -> None:
    """Before 1970, and beyond what a duration can be added to."""
    db = changed(
        database(tmp_path / "a.db"),
        "UPDATE events SET timestamp = -5000 WHERE rowid = 1",
        "UPDATE events SET timestamp = 9223372036854775807, duration = 9223372036854775807 "
        "WHERE rowid = 2",
    )
    for kind in ("perfetto", "perfetto-proto"):
        assert export(db, tmp_path / "out", kind).stderr.startswith("4 events, 0 chains")
    export(db, tmp_path / "out.json")
    times = [
        element["ts"]
        for element in json.loads((tmp_path / "out.json").read_text())
        if element["ph"] != "M"
    ]
    assert times[0] == -5


def test_a_chain_without_events_and_without_words_is_a_marker(tmp_path: Path) -> None:
    db = changed(
        database(tmp_path / "a.db", events=0),
        "DELETE FROM collectives",
        "DROP TABLE causal_chains",
        "CREATE TABLE causal_chains (id, detected_at INTEGER, severity, summary, root_cause, "
        "recommendations, "
        "cuda_op, timeline)",
        "INSERT INTO causal_chains VALUES ('c', 5000, 'HIGH', NULL, NULL, NULL, NULL, NULL)",
    )
    export(db, tmp_path / "out.pftrace", "perfetto-proto")
    export(db, tmp_path / "out.json")
    name, marker = json.loads((tmp_path / "out.json").read_text())
    assert (name["pid"], name["args"], marker["pid"], marker["name"]) == (
        1,
        {"name": "local"},
        1,
        "HIGH: ",
    )


MEASURED = """
import re, sys
from pathlib import Path
from ingero.__main__ import main
main(sys.argv[1:])
print(re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1])
"""
MORE = """
    WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 200000)
    INSERT INTO events (id, timestamp, pid, tid, source, op, duration, node)
    SELECT 'n1:' || (i + 9), 1000000000000000000 + i * 1000, i % 5, i % 7, 1 + i % 5, 1, i % 900,
           'n1' FROM n"""


def test_memory_does_not_grow_with_the_number_of_events(tmp_path: Path) -> None:
    """A million must stay below 150 MB."""
    chain = (
        "INSERT INTO causal_chains (id, detected_at, severity, summary, root_cause, explanation, "
        "cuda_op, timeline, "
        "node) VALUES ('n1:c', 1000000000200000000, 'HIGH', '', '', '', 'cudaMalloc', "
        "'[{\"layer\": \"HOST\"}]', 'n1')"
    )
    few, many = database(tmp_path / "few.db"), changed(database(tmp_path / "many.db"), MORE, chain)
    for kind in ("perfetto", "perfetto-proto"):
        peaks_kib = []
        for db in (few, many):
            arguments = ["export", "--format", kind, "-d", str(db), "-o", str(tmp_path / "out")]
            done = subprocess.run(
                [sys.executable, "-c", MEASURED, *arguments],
                check=True,
                capture_output=True,
                text=True,
                timeout=2 * PATIENCE_S,
            )
            peaks_kib.append(int(done.stdout))
        assert (tmp_path / "out").stat().st_size > 8_000_000
        assert peaks_kib[1] - peaks_kib[0] < 24 * 1024, peaks_kib
