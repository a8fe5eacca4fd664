"""Recordings as users keep them: written by spreadsheets, packed, numbered within groups, empty."""

import bz2
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.recorded_jobs import Job, record

from ingero.errors import ForeignFile
from ingero.importers.ask import blame_inputs
from ingero.importers.collectives_csv import REQUIRED
from ingero.importers.detect import load

COLUMNS = ("global_rank", *REQUIRED)
ZSTD = bytes.fromhex("28b52ffd")


def lines_of(job: Job, separator: str = ",", number: Callable[[int], str] = str) -> list[str]:
    lines = [separator.join(COLUMNS)]
    for each in record(job):
        begin = each.end_ns - (each.gpu_duration_ns or 0)
        names = (str(each.global_rank), f"{each.comm:016x}", str(each.seq), each.op)
        numbers = (each.rank, each.nranks, each.start_ns, begin, each.end_ns)
        lines.append(separator.join((*names, *map(number, numbers))))
    return lines


SLOW = Job(dp=4, tp=2, steps=40, slow_gpu={5: 0.2})


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("mark", ["", "\ufeff"])
def test_files_of_spreadsheets_are_read(separator: str, mark: str, tmp_path: Path) -> None:
    (tmp_path / "job.csv").write_text(mark + "\n".join(lines_of(SLOW, separator)))
    assert [each.rank for each in blame_inputs(load([tmp_path])).culprits] == [5]


def test_whole_numbers_may_be_written_as_fractions_of_one(tmp_path: Path) -> None:
    """Data frames write all numbers of a column so where one of them is missing."""
    lines = lines_of(SLOW, number=lambda value: repr(float(value)))
    lines[3] = ",".join([*lines[3].split(",")[:-1], "1.5"])
    (tmp_path / "job.csv").write_text("\n".join(lines))
    inputs = load([tmp_path])
    assert [each.rank for each in blame_inputs(inputs).culprits] == [5]
    (problem,) = inputs.problems
    assert "1 of " in problem and "gpu_stop_ns is 1.5, not a whole number" in problem


def test_ranks_of_groups_do_not_pass_for_ranks_of_the_job(tmp_path: Path) -> None:
    """Two tensor and four data ranks: `rank` counts in each group, and eight processes have it."""
    text = "\n".join(line.split(",", 1)[1] for line in lines_of(SLOW))
    (tmp_path / "job.csv").write_text(text)
    with pytest.raises(ForeignFile, match=r"'global_rank' is missing; .* of 2 to 4 ranks"):
        load([tmp_path])
    alone = "\n".join(line.split(",", 1)[1] for line in lines_of(Job(dp=4, tp=1, steps=40)))
    (tmp_path / "job.csv").write_text(alone)
    assert not load([tmp_path]).problems


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "it is empty"),
        (ZSTD + b"12", r"packed with zstd, which is not read: unpack it first \(`zstd -d`\)"),
        (bz2.compress(b"12"), r"packed with bzip2, .* \(`bunzip2`\)"),
        (b"\x04\x22\x4d\x18", r"packed with lz4, .* \(`lz4 -d`\)"),
        (b"PK\x03\x04", r"a zip file, .* \(`unzip`\)"),
        (b"hello", "known format"),
    ],
)
def test_a_file_that_is_not_read_says_why(content: bytes, reason: str, tmp_path: Path) -> None:
    (tmp_path / "_dump_0").write_bytes(content)
    for asked in (tmp_path, tmp_path / "_dump_0"):
        with pytest.raises(ForeignFile, match=reason):
            load([asked])
    (tmp_path / "_dump_1").write_bytes(content)
    with pytest.raises(ForeignFile, match=reason):
        load([tmp_path])


def test_packed_files_beside_others_are_said_once(tmp_path: Path) -> None:
    (tmp_path / "job.csv").write_text("\n".join(lines_of(SLOW)))
    for name in ("a.zst", "b.zst", "model.pt", "notes.txt"):
        content = ZSTD if name.endswith("zst") else b"PK\x03\x04" if name.endswith("pt") else b"x"
        (tmp_path / name).write_bytes(content)
    (problem,) = load([tmp_path]).problems
    assert problem.startswith(f"{tmp_path / 'a.zst'}: packed with zstd")
    assert problem.endswith("; 1 more, too")
