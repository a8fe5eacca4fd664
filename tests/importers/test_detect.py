"""Files are recognised by content and read in any mixture; bad ones are listed with a reason."""

import gzip
import json
import math
import os
import pickle
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.dump_files import flight_dump, inspector_lines, kineto_trace, write_dumps
from tests.support.recorded_jobs import Job, record
from tests.support.ring_model import ModelRing

from ingero.core.blame.answer import Answer
from ingero.errors import ForeignFile, IngeroError, MalformedInput, TooLarge
from ingero.importers.ask import blame_inputs
from ingero.importers.detect import ReadLimits, load
from ingero.importers.kineto import read_kineto

DDP = Job(tp=1, dp=4, slow_gpu={2: 0.08}, steps=40)


def _ask(*paths: Path) -> Answer:
    return blame_inputs(load(paths))


def _named(answer: Answer) -> list[tuple[int | None, str]]:
    return [(c.rank, str(c.cause)) for c in answer.culprits]


def test_pickled_dumps_name_the_rank(tmp_path: Path) -> None:
    write_dumps(tmp_path, Job(slow_host={5: 0.004}, steps=40))
    answer = _ask(tmp_path)
    assert _named(answer) == [(5, "host")]
    assert (answer.source, answer.gpus) == ("flight-recorder", 8)


def test_dumps_of_a_pipeline_with_sends_name_the_rank(tmp_path: Path) -> None:
    write_dumps(tmp_path, Job(tp=1, pp=2, dp=4, slow_gpu={6: 0.1}, steps=40))
    assert [c.rank for c in _ask(tmp_path).culprits] == [6]


def test_json_dumps_are_the_same_as_pickled_ones(tmp_path: Path) -> None:
    records = record(DDP)
    for rank in range(4):
        (tmp_path / f"trace_rank_{rank}.json").write_text(json.dumps(flight_dump(records, rank)))
    assert [c.rank for c in _ask(tmp_path).culprits] == [2]


def test_dumps_without_names_or_new_fields_still_contain_their_rank(tmp_path: Path) -> None:
    records = record(Job(slow_host={5: 0.004}, steps=30))
    for rank in range(8):
        dump = flight_dump(records, rank)
        for entry in dump["entries"]:
            for field in (
                "record_id",
                "pg_id",
                "retired",
                "timeout_ms",
                "is_p2p",
                "time_discovered_started_ns",
            ):
                del entry[field]
        del dump["pg_status"]
        name = "abcdefgh"[rank]  # no number in it: the groups have one member in common
        (tmp_path / name).write_bytes(pickle.dumps(dump))
    assert [c.rank for c in _ask(tmp_path).culprits] == [5]


def test_dumps_without_durations_say_what_was_missing(tmp_path: Path) -> None:
    records = record(DDP)
    for rank in range(4):
        (tmp_path / f"_dump_{rank}").write_bytes(
            pickle.dumps(flight_dump(records, rank, timed=False))
        )
    answer = _ask(tmp_path)
    assert answer.culprits == ()
    assert answer.not_sure is not None and "TORCH_NCCL_ENABLE_TIMING" in answer.not_sure


class _Evil:
    def __reduce__(self) -> Any:
        return os.system, ("touch owned",)


@pytest.mark.parametrize("payload", [_Evil(), {"entries": [_Evil()]}, Path("/")])
def test_a_pickle_with_a_class_is_refused_and_runs_nothing(
    payload: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "_dump_0").write_bytes(pickle.dumps(payload))
    with pytest.raises(ForeignFile, match=r"_dump_0.*plain containers only"):
        load([tmp_path / "_dump_0"])
    assert not (tmp_path / "owned").exists()


def test_damaged_files_are_named_and_the_rest_answers(tmp_path: Path) -> None:
    paths = write_dumps(tmp_path, DDP)
    whole = paths[3].read_bytes()
    paths[3].write_bytes(whole[: len(whole) // 2])
    answer = _ask(*paths)
    assert [c.rank for c in answer.culprits] == [2]
    assert any(str(paths[3]) in note for note in answer.notes)
    assert any(note.startswith("partial set: 3 of 4 ranks; missing 3") for note in answer.notes)


@pytest.mark.parametrize("verbose", [True, False])
def test_inspector_files_name_the_rank_and_host(verbose: bool, tmp_path: Path) -> None:
    records = record(DDP)
    for rank in range(4):
        lines = [json.dumps(line) for line in inspector_lines(records, rank, verbose=verbose)]
        # killed while writing
        (tmp_path / f"host-{rank}.log").write_text("\n".join(lines) + '\n{"header": {"id": "0x1')
    answer = _ask(tmp_path)
    assert [(c.rank, c.node) for c in answer.culprits] == [(2, "host1")]
    assert answer.source == "nccl-inspector"
    assert sum("left out" in note for note in answer.notes) == 4
    if verbose:
        assert _named(answer) == [(2, "compute")]


@pytest.mark.parametrize("packed", [True, False])
def test_kineto_traces_name_rank_and_class(packed: bool, tmp_path: Path) -> None:
    records = record(DDP)
    for rank in range(4):
        data = json.dumps(kineto_trace(records, rank, 4)).encode()
        name = f"worker{rank}.pt.trace.json" + (".gz" if packed else "")
        (tmp_path / name).write_bytes(gzip.compress(data) if packed else data)
    assert _named(_ask(tmp_path)) == [(2, "compute")]


def test_saved_rings_of_the_plugin_name_rank_and_class(tmp_path: Path) -> None:
    job = Job(slow_host={5: 0.004}, steps=20)
    records = record(job)
    for rank in range(job.world):
        ring = ModelRing(tmp_path / f"ring-{rank}", slots=256)
        ring.header["global_rank"], ring.header["world_size"] = rank, job.world
        for r in (r for r in records if r.global_rank == rank):
            ring.write(
                comm=r.comm, seq=r.seq, op=r.op.encode(), datatype=b"Bfloat16",
                count=r.size_bytes // 2, rank=r.rank,
                nranks=r.nranks, peer=-1, kind=1, enqueue_ns=r.start_ns, gpu_stop_ns=r.end_ns,
                gpu_start_ns=r.end_ns - (r.gpu_duration_ns or 0), host_stop_ns=r.end_ns + 20_000,
            )  # fmt: skip
        ring.close()
    answer = _ask(tmp_path)
    assert _named(answer) == [(5, "host")]
    assert (answer.source, answer.gpus, answer.notes) == ("nccl-plugin", 8, ())


def test_mixtures_and_strangers_are_sorted_out(tmp_path: Path) -> None:
    write_dumps(tmp_path, DDP)
    (tmp_path / "notes.txt").write_text("nothing to see")
    (tmp_path / "broken.json").write_text('{"traceEvents": [')
    answer = _ask(tmp_path)
    assert [c.rank for c in answer.culprits] == [2]
    assert [note for note in answer.notes if "broken.json" in note]
    assert not [note for note in answer.notes if "notes.txt" in note]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"hello", "nothing to read"),
        ("a.csv", b"comm_hash,seq\n1,2\n", "column 'op' is missing"),
        ("rings.tar.xz", b"\xfd7zXZ\x00\x00\x04", "the xz stream ends early"),
        ("a.parquet", b"PAR1 but not really", "not a readable Parquet file"),
        ("a.json.gz", b"\x1f\x8b\x08\x00garbage", "gzip"),
        ("a_0.json", b'{"entries": [{"profiling_name": 1}]}', "an entry lacks or misuses a field"),
        ("a.json", b'{"traceEvents": 5}', "'traceEvents' is not a list"),
        ("a.json", b'{"traceEvents": []}', "the rank is neither in"),
    ],
)
def test_bad_files_say_what_and_where(
    name: str, content: bytes, message: str, tmp_path: Path
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(IngeroError, match=message) as caught:
        load([tmp_path / name])
    assert name in str(caught.value)


def _spoilt(fields: dict[str, Any], name: str, value: object) -> None:
    if name in fields:
        fields[name] = value
    else:
        del fields[name.removeprefix("no ")]


@pytest.mark.parametrize(
    ("name", "value"),
    [("profiling_name", ["x"]), ("input_sizes", 7), ("duration_ms", "long"), ("duration_ms", -1),
     ("time_created_ns", None), ("no time_created_ns", None), ("collective_seq_id", "x")],
)  # fmt: skip
def test_a_bad_entry_of_a_dump_is_left_out(name: str, value: object, tmp_path: Path) -> None:
    records = record(DDP)
    for rank in range(4):
        dump = flight_dump(records, rank)
        if rank == 1:
            _spoilt(dump["entries"][9], name, value)
            dump["entries"].append(None)
        (tmp_path / f"_dump_{rank}").write_bytes(pickle.dumps(dump))
    answer = _ask(tmp_path)
    assert [c.rank for c in answer.culprits] == [2]
    (note,) = [note for note in answer.notes if "_dump_1" in note]
    assert f"2 of {len(dump['entries']) + 1} entries are left out; the first is entry 9" in note


@pytest.mark.parametrize(
    ("name", "value"),
    [("ts", "soon"), ("ts", None), ("dur", -4.0), ("no dur", None), ("args", [1]),
     ("args", {"Collective name": "allreduce", "In msg nelems": "many"})],
)  # fmt: skip
def test_a_bad_event_of_a_trace_is_left_out(name: str, value: object, tmp_path: Path) -> None:
    records = record(DDP)
    for rank in range(4):
        trace = kineto_trace(records, rank, 4)
        if rank == 1:
            kernel = [e for e in trace["traceEvents"] if e["name"].startswith("nccl")][9]
            _spoilt(kernel, name, value)
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(trace))
    answer = _ask(tmp_path)
    assert _named(answer) == [(2, "compute")]
    assert sum("1 of 40 events are left out" in note for note in answer.notes) == 1


@pytest.mark.parametrize("name, value", [("ts", math.nan), ("ts", "soon"), ("no ts", None)])
def test_a_kernel_without_a_time_changes_no_number_of_the_others(name: str, value: object) -> None:
    path, trace = Path("rank1.json"), kineto_trace(record(DDP), 1, 4)
    whole = read_kineto(path, trace).records
    kernels = [event for event in trace["traceEvents"] if event["name"].startswith("nccl")]
    _spoilt(kernels[9], name, value)
    assert read_kineto(path, trace).records == (*whole[:9], *whole[10:])


def test_a_bad_object_of_an_inspector_is_left_out(tmp_path: Path) -> None:
    records = record(replace(DDP, steps=120))
    for rank in range(4):
        objects = inspector_lines(records, rank, verbose=True)
        if rank == 1:
            objects[3]["coll_perf"]["coll_exec_time_us"] = "long"
            objects[5]["header"]["rank"] = None
            objects[7]["coll_perf"]["event_trace_ts"]["kernel_events"] = []
        lines = [json.dumps(each) for each in objects]
        if rank == 1:
            lines[8] = lines[8][: len(lines[8]) // 2]
        (tmp_path / f"host-{rank}.log").write_text("\n".join(lines))
    answer = _ask(tmp_path)
    assert _named(answer) == [(2, "compute")], "the others still have the times of their kernels"
    path = tmp_path / "host-1.log"
    (first, *others) = [note for note in answer.notes if str(path) in note]
    assert first.startswith(f"{path}: 2 of 119 objects are left out; the first is object 4: ")
    assert others == [
        f"{path}: 1 object left out: no collective, or cut off",
        f"{path}: 1 of 117 collectives have no kernel times; left out",
    ]


def test_two_recordings_are_not_mixed(tmp_path: Path) -> None:
    for name in ("monday", "tuesday"):
        (tmp_path / name).mkdir()
        write_dumps(tmp_path / name, Job(tp=1, dp=2, steps=5))
    with pytest.raises(
        MalformedInput, match=r"rank 0 left a dump in .*monday and in .*tuesday: ask about one"
    ):
        load([tmp_path])


def test_ranks_of_one_job_may_lie_in_several_folders(tmp_path: Path) -> None:
    paths = write_dumps(tmp_path, DDP)
    for path in paths:
        folder = tmp_path / f"node{int(path.name[-1]) // 2}"
        folder.mkdir(exist_ok=True)
        path.rename(folder / path.name)
    assert [c.rank for c in _ask(tmp_path).culprits] == [2]


def test_a_bad_line_of_records_is_named_by_number(tmp_path: Path) -> None:
    header = (
        "global_rank,comm_hash,seq,op,count,datatype,rank,nranks,"
        "enqueue_ns,gpu_start_ns,gpu_stop_ns"
    )
    (tmp_path / "r.csv").write_text(
        f"{header}\n0,ab,0,AllReduce,4,float32,0,2,1,2,3\n0,ab,1,AllReduce,4,float32,0,2,1,9,3\n"
    )
    path = tmp_path / "r.csv"
    inputs = load([path])
    assert [len(records) for records in inputs.records.values()] == [1]
    assert inputs.problems == [
        f"{path}: 1 of 2 lines are left out; "
        "the first is line 3: gpu_stop_ns 3 is before gpu_start_ns 9"
    ]
    lines = path.read_text().splitlines()
    path.write_text(f"{lines[0]}\n{lines[2]}\n")
    with pytest.raises(ForeignFile, match=r"line 2: gpu_stop_ns 3 is before gpu_start_ns 9"):
        load([path])


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ((), "there are no files"),
        (("a.txt",), "the only file has no known format (see `ingero blame --help`)"),
        (("a.txt", "b.db"), "none of the 2 files has a known format (see `ingero blame --help`); "
         "name a trace database itself: "),
    ],
)  # fmt: skip
def test_a_folder_without_recordings_says_what_it_has(
    files: tuple[str, ...], why: str, tmp_path: Path
) -> None:
    for name in files:
        (tmp_path / name).write_text("no recording")
    with pytest.raises(ForeignFile, match=re.escape(f"nothing to read in {tmp_path}: {why}")):
        load([tmp_path])


def test_the_only_file_is_named_once_when_it_is_no_recording(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_text("no recording")
    why = f"nothing to read in {path}: unknown format (see `ingero blame --help`)"
    with pytest.raises(ForeignFile, match=f"^{re.escape(why)}$"):
        load([path])


def test_missing_paths_and_large_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MalformedInput, match="no such file or folder"):
        load([tmp_path / "nowhere"])
    (tmp_path / "bomb.gz").write_bytes(gzip.compress(bytes(100_000)))
    with pytest.raises(ForeignFile, match="unpacks to more than 1000 bytes"):
        load([tmp_path / "bomb.gz"], ReadLimits(unpacked_bytes=1000))
    with pytest.raises(TooLarge):
        load([tmp_path], ReadLimits(files=0))


CSV_HEAD = "comm_hash,seq,op,rank,nranks,enqueue_ns,gpu_start_ns,gpu_stop_ns"


def test_records_copied_while_they_were_written_lose_their_last_line_only(tmp_path: Path) -> None:
    path = tmp_path / "collectives.csv"
    lines = [
        f"00000000000000aa,{seq},AllReduce,{rank},2,{seq}00,{seq}10,{seq}20"
        for seq in (1, 2)
        for rank in (0, 1)
    ]
    path.write_text("\n".join([CSV_HEAD, *lines])[:-8])
    inputs = load([path])
    assert sum(len(records) for records in inputs.records.values()) == 3
    assert inputs.problems == [
        f"{path}: 1 of 4 lines are left out; "
        "the first is line 5: gpu_start_ns is empty, not a whole number"
    ]


def test_a_bad_line_among_good_ones_is_named_with_its_column(tmp_path: Path) -> None:
    path = tmp_path / "collectives.csv"
    path.write_text(
        f"{CSV_HEAD}\n00000000000000aa,1,AllReduce,x,2,1,1,2\n00000000000000aa,2,AllReduce,0,2,1,1,2\n"
    )
    assert load([path]).problems == [
        f"{path}: 1 of 2 lines are left out; the first is line 2: rank is x, not a whole number"
    ]


def test_a_better_source_of_fewer_ranks_is_noted(tmp_path: Path) -> None:
    write_dumps(tmp_path, DDP)
    (tmp_path / "collectives.csv").write_text(
        f"{CSV_HEAD}\n00000000000000aa,1,AllReduce,0,4,1,1,2\n"
    )
    answer = _ask(tmp_path)
    assert _named(answer) == [(2, "compute")]
    assert "present, but only for 1 of 4 ranks: nccl-plugin" in answer.notes
