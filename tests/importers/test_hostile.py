"""Whatever a file contains, reading it gives records or an error of this package."""

import json
import pickle
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.dump_files import flight_dump, inspector_lines, kineto_trace
from tests.support.recorded_jobs import Job, record

from ingero.errors import ForeignFile, IngeroError, MalformedInput, TooLarge
from ingero.importers.ask import blame_inputs
from ingero.importers.collectives_csv import REQUIRED
from ingero.importers.detect import Inputs, _read, load
from ingero.importers.flight_recorder import read_dump
from ingero.importers.inspector import read_inspector
from ingero.importers.kineto import read_kineto
from ingero.importers.nccl_ring import RING_MAGIC
from ingero.importers.steps import read_steps

RECORDS = record(Job(tp=1, dp=2, steps=3))
ODD: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=5),
    st.builds(list), st.builds(dict), st.builds(lambda: [["x"]]), st.just("['a', 1]"),
    st.builds(lambda: {"ranks": "['a']"}),
)  # fmt: skip


def _spots(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    found = [path] if path else []
    children = (
        node.items()
        if isinstance(node, dict)
        else enumerate(node)
        if isinstance(node, list)
        else ()
    )
    for key, child in list(children)[:12]:
        found += _spots(child, (*path, key))
    return found


def _spoiled(document: Any, choose: st.DataObject) -> Any:
    """Return a deep copy with one to three values replaced or removed."""
    copy = json.loads(json.dumps(document))
    for _ in range(choose.draw(st.integers(1, 3))):
        *path, last = choose.draw(st.sampled_from(_spots(copy)))
        node = copy
        for key in path:
            node = node[key]
        if isinstance(node, dict) and choose.draw(st.booleans()):
            del node[last]
        else:
            node[last] = choose.draw(ODD)
    return copy


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_spoiled_dumps(choose: st.DataObject) -> None:
    content = _spoiled(flight_dump(RECORDS, 0), choose)
    inputs = Inputs()
    try:
        inputs.add_dump(Path("_dump_0"), pickle.dumps(content))
        inputs.add_dump(Path("_dump_1"), pickle.dumps(flight_dump(RECORDS, 1)))
    except IngeroError:
        return
    blame_inputs(inputs)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_spoiled_kineto_traces(choose: st.DataObject) -> None:
    try:
        read_kineto(Path("rank0.json"), _spoiled(kineto_trace(RECORDS, 0, 2), choose))
    except IngeroError:
        return


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_spoiled_inspector_lines(choose: st.DataObject) -> None:
    lines = _spoiled(inspector_lines(RECORDS, 0, verbose=True), choose)
    try:
        read_inspector(Path("i.log"), "\n".join(json.dumps(line) for line in lines))
    except IngeroError:
        return


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_flipped_and_cut_bytes(choose: st.DataObject) -> None:
    data = bytearray(pickle.dumps(flight_dump(RECORDS[:6], 0)))
    for _ in range(choose.draw(st.integers(1, 4))):
        data[choose.draw(st.integers(0, len(data) - 1))] = choose.draw(st.integers(0, 255))
    cut = choose.draw(st.integers(1, len(data)))
    try:
        read_dump(Path("_dump_0"), bytes(data[:cut]))
    except IngeroError:
        return


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"[1]",
        b"\x80",
        b"\x80\x04.",
        b"PAR1",
        b"\x1f\x8b",
        b"comm_hash",
        b"\x00" * 64,
    ],
)
def test_stubs_of_files(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "stub_0"
    path.write_bytes(content)
    try:
        assert _read(path, Inputs()) is None
    except IngeroError as error:
        assert "stub_0" in str(error)


@pytest.mark.parametrize("content", [b'{"entries":' + b"[" * 100_000, b'{"coll_perf":' * 60_000])
def test_files_nested_without_end_are_named_not_a_traceback(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "deep.json"
    path.write_bytes(content)
    with pytest.raises(ForeignFile, match="nested too deeply"):
        load([path])


@pytest.mark.parametrize(
    "field", ["profiling_name", "input_sizes", "input_dtypes", "state", "pg_id", "process_group"]
)
def test_lists_that_repeat_themselves_are_not_written_out(field: str) -> None:
    """A few hundred bytes of pickle are 4^40 words as text."""
    bomb: list[Any] = ["x"]
    for _ in range(40):
        bomb = [bomb] * 4
    dump = flight_dump(RECORDS, 0)
    dump["entries"][0][field] = bomb
    found = read_dump(Path("_dump_0"), pickle.dumps(dump))
    assert len(found.records) == len(dump["entries"]) - 1
    assert found.left_out is not None
    assert len(found.left_out) < 300
    dump["entries"] = dump["entries"][:1]
    with pytest.raises(MalformedInput, match="lacks or misuses a field"):
        read_dump(Path("_dump_0"), pickle.dumps(dump))


def test_a_table_that_is_no_schedule_is_refused_before_it_takes_all_memory(tmp_path: Path) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="reads Parquet; pip install 'ingero[parquet]'")
    parquet = pytest.importorskip("pyarrow.parquet")
    number = list(range(400))
    table: dict[str, list[Any]] = dict.fromkeys(
        ("dp_rank", "rank", "step", "seq_id", "start_ts", "duration"), number
    )
    table |= {"stage": [0] * 400, "optype": ["forward-compute"] * 400}
    parquet.write_table(pyarrow.table(table), tmp_path / "ids.parquet")
    with pytest.raises(TooLarge, match="400 operations × 400 replicas × 400 steps"):
        read_steps(tmp_path / "ids.parquet")


HEADS = (
    b"", b"{", b'{"traceEvents":[', b'{"entries":[', b'{"coll_perf":', b"\x80\x04", b"\x1f\x8b\x08",
    RING_MAGIC, b"comm_hash,seq,op,rank,nranks,enqueue_ns,gpu_start_ns,gpu_stop_ns\n",
    b"world_size: 4\ntp_size: 2\n",
)  # fmt: skip


@settings(max_examples=200, deadline=None)
@given(st.sampled_from(HEADS), st.binary(max_size=300) | st.text(max_size=100).map(str.encode))
def test_any_bytes_after_the_beginning_of_any_kind(head: bytes, rest: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file_0"
        path.write_bytes(head + rest)
        try:
            blame_inputs(load([path]))
        except IngeroError as error:
            assert "file_0" in str(error)


def test_ranks_without_a_common_step_are_answered() -> None:
    """Five records: a rank that shares no collective with the others (before: an exception)."""
    lines = [
        (1, 12, "AllReduce", 5, 120),
        (2, 13, "AllReduce", 5, 130),
        (2, 15, "AllReduce", 5, 150),
        (1, 16, "2147483648", 4, 160),
        (1, 16, "AllReduce", 5, 160),
    ]
    text = ",".join(REQUIRED) + "\n"
    for comm, seq, op, rank, ms in lines:
        begin = ms * 1_000_000
        text += f"{comm:016x},{seq},{op},{rank},8,{begin},{begin + 1000},{begin + 50_000}\n"
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "a.csv")
        path.write_text(text)
        assert blame_inputs(load([path])).culprits == ()
