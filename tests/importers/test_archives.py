"""Archives and compressed files as recordings: read in memory, little of it, nothing unpacked."""

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.recorded_jobs import Job, record
from tests.support.wire_attempts import MEMORY_BYTES, peak_bytes

from ingero.contract.collective import CollectiveRecord
from ingero.errors import ForeignFile
from ingero.importers import detect
from ingero.importers.ask import blame_inputs
from ingero.importers.collectives_csv import REQUIRED, read_csv
from ingero.importers.detect import SeveralJobs, load

ZEROS = bytes(100 << 20)
TRACE = b'{"traceEvents": [' + b"{}," * (16 << 20)


def tar(*members: tuple[str, bytes, bytes, str], packed: str = "") -> bytes:
    """Members as (name, content, type, target of a link)."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode=f"w:{packed}") as archive:
        for name, content, kind, target in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.size = kind, target, len(content)
            archive.addfile(member, io.BytesIO(content))
    return made.getvalue()


def zipped(name: str, content: bytes) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return made.getvalue()


def outside(packed: str = "") -> bytes:
    """Members that would be written or read outside of their folder."""
    return tar(
        ("../escaped", b"x", tarfile.REGTYPE, ""),
        ("/tmp/ingero-escaped", b"x", tarfile.REGTYPE, ""),
        ("link", b"", tarfile.SYMTYPE, ".."),
        ("link/escaped", b"x", tarfile.REGTYPE, ""),
        ("hard", b"", tarfile.LNKTYPE, "/etc/passwd"),
        ("device", b"", tarfile.CHRTYPE, ""),
        ("pipe", b"", tarfile.FIFOTYPE, ""),
        packed=packed,
    )


def inner(content: bytes) -> tuple[str, bytes, bytes, str]:
    return ("rank0.json", content, tarfile.REGTYPE, "")


FILES: dict[str, Callable[[], bytes]] = {
    "outside.tar": outside,
    "outside.tar.gz": lambda: outside("gz"),
    "outside.tar.xz": lambda: outside("xz"),
    "outside.zip": lambda: zipped("../escaped", b"x"),
    "bomb.tar.gz": lambda: tar(inner(ZEROS), packed="gz"),
    "bomb.tar.xz": lambda: lzma.compress(tar(inner(ZEROS)), preset=0),
    "bomb.zip": lambda: zipped("rank0.json", ZEROS),
    "bomb.xz": lambda: lzma.compress(ZEROS, preset=0),
    "bomb.bz2": lambda: bz2.compress(ZEROS[: 48 << 20]),
    "bomb.zst": lambda: bytes.fromhex("28b52ffd") + b"\xff" * 100,
    "bomb.json.gz": lambda: gzip.compress(TRACE),
    "gzip under another name.json": lambda: gzip.compress(TRACE),
    "nested.gz": lambda: gzip.compress(gzip.compress(gzip.compress(ZEROS))),
}


@pytest.mark.parametrize("name", FILES)
def test_archives_are_refused_with_a_sentence(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / name).write_bytes(FILES[name]())
    Path("/proc/self/clear_refs").write_text("5")  # making the file took memory, too
    before = peak_bytes()
    with pytest.raises(ForeignFile, match=name):
        load([folder / name])
    assert peak_bytes() - before < MEMORY_BYTES
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [name]
    assert not Path("/tmp/ingero-escaped").exists()


def ring_files(folder: Path) -> dict[str, bytes]:
    """Return the files of a small job as CSV, one per rank, and one that is no recording."""
    job = record(Job(dp=2, steps=30, slow_gpu={1: 0.2}))
    lines: dict[str, list[str]] = {}
    for each in job:
        begin = each.end_ns - (each.gpu_duration_ns or 0)
        name = f"rank{each.global_rank}.csv"
        lines.setdefault(name, [",".join((*REQUIRED, "global_rank"))]).append(
            f"{each.comm:016x},{each.seq},{each.op},{each.rank},{each.nranks},{each.start_ns},"
            f"{begin},{each.end_ns},{each.global_rank}"
        )
    return {name: "\n".join(text).encode() for name, text in lines.items()} | {"notes": b"hello"}


@pytest.mark.parametrize("packed", ["", "gz", "xz"])
def test_recordings_in_an_archive_are_read(packed: str, tmp_path: Path) -> None:
    files = [
        (f"job/{name}", data, tarfile.REGTYPE, "") for name, data in ring_files(tmp_path).items()
    ]
    path = tmp_path / f"job.tar.{packed or 'plain'}"
    path.write_bytes(tar(*files, ("job/link", b"", tarfile.SYMTYPE, "/etc"), packed=packed))
    inputs = load([path])
    assert [kind for _, kind in inputs.used] == ["archive of 4 files (collective record file)"]
    assert [each.rank for each in blame_inputs(inputs).culprits] == [1]
    again = tmp_path / "again.tar"
    again.write_bytes(tar(*files))
    with pytest.raises(SeveralJobs, match="one at a time"):
        load([path, again])


def test_a_broken_file_in_an_archive_is_left_out_and_said(tmp_path: Path) -> None:
    files = [(name, data, tarfile.REGTYPE, "") for name, data in ring_files(tmp_path).items()]
    path = tmp_path / "job.tar"
    path.write_bytes(tar(("bad.json", b'{"traceEvents": 5}', tarfile.REGTYPE, ""), *files))
    inputs = load([path])
    assert [each.rank for each in blame_inputs(inputs).culprits] == [1]
    assert [text for text in inputs.problems if "bad.json" in text]


def test_a_file_with_values_that_nothing_holds_leaves_the_others_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text(",".join(REQUIRED) + "\n00,1,AllReduce,0,1,1,2,3\n")
    (tmp_path / "c.tar").write_bytes(tar(("x.csv", b"comm_hash,", tarfile.REGTYPE, "")))

    def read(path: Path, text: str, problems: list[str]) -> list[CollectiveRecord]:
        if path.name == "b.csv":
            return read_csv(path, text, problems)
        raise OverflowError("int too large")

    monkeypatch.setattr(detect, "read_csv", read)
    inputs = load([tmp_path])
    assert [path.name for path, _ in inputs.used] == ["b.csv"]
    assert inputs.problems == [
        f"{tmp_path / name}: holds what no recording holds (OverflowError: int too large)"
        for name in ("a.csv", "c.tar/x.csv")
    ]


def test_a_tar_file_with_an_impossible_size_is_a_problem_of_its_own(tmp_path: Path) -> None:
    member = tarfile.TarInfo("rank0.json")
    member.pax_headers = {"size": "9" * 20}
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        archive.addfile(member)
    (tmp_path / "b.csv").write_text(",".join(REQUIRED) + "\n00,1,AllReduce,0,1,1,2,3\n")
    (problem,) = load([tmp_path]).problems
    assert problem.startswith(f"{tmp_path / 'a.tar'}: broken tar (")
