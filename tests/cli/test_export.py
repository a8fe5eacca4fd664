"""`ingero export` on the reference samples and on files of our own."""

import json
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from tests.shared_data import shared
from tests.storage.test_merge import database

from ingero.cli.export import command
from ingero.storage.merge import merge


def export(db: Path, output: Path, kind: str = "perfetto") -> Any:
    result = CliRunner().invoke(command, ["--format", kind, "-d", str(db), "-o", str(output)], catch_exceptions=False)
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
    import pytest

    from ingero.errors import StoreError

    with pytest.raises(StoreError, match="cannot write"):
        CliRunner().invoke(
            command, ["--format", "perfetto", "-d", str(database(tmp_path / "a.db")), "-o", str(tmp_path / "no" / "x")],
            catch_exceptions=False,
        )  # fmt: skip


def test_the_database_is_never_written_over(tmp_path: Path) -> None:
    import pytest

    from ingero.errors import StoreError

    path = database(tmp_path / "a.db")
    before = path.read_bytes()
    (tmp_path / "link.db").symlink_to(path)
    for source, output in ((path, path), (path, tmp_path / "link.db"), (tmp_path / "link.db", path)):
        with pytest.raises(StoreError, match="the trace database itself"):
            CliRunner().invoke(
                command, ["--format", "perfetto", "-d", str(source), "-o", str(output)], catch_exceptions=False
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
