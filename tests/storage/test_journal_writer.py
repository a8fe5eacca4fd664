"""Appending to the journal: what reaches the disk, in which order, and what an error leaves."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ingero.errors import StoreFull
from ingero.storage.journal.frames import FRAME_HEAD, SEGMENT_HEAD, Segment, list_segments
from ingero.storage.journal.reader import JournalReader
from ingero.storage.journal.writer import SEGMENT_BYTES, JournalWriter

SMALL = 4096
FITS = SMALL - SEGMENT_HEAD.size - FRAME_HEAD.size  # a body that fills a segment


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Names of the calls that write or sync, in their order."""
    seen: list[str] = []

    def noted(name: str) -> Callable[..., object]:
        original = getattr(os, name)

        def call(*arguments: object) -> object:
            seen.append(name)
            return original(*arguments)

        return call

    for name in ("pwrite", "fdatasync", "fsync", "rename"):
        monkeypatch.setattr(os, name, noted(name))
    return seen


def append(writer: JournalWriter, *bodies: bytes) -> int:
    return writer.append([(1, body) for body in bodies], 5)


def bodies(directory: Path, durable: int, after: int = 0) -> list[bytes]:
    reader = JournalReader(directory, after)
    try:
        return [frame.body for frame in reader.read(durable, 1 << 30)]
    finally:
        reader.close()


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_new_journal_has_one_segment_of_64_mib_by_default(tmp_path: Path) -> None:
    assert SEGMENT_BYTES == 64 * 1024 * 1024
    writer = JournalWriter(tmp_path, 7)
    assert writer.segments == [Segment(tmp_path / "journal-00000001", 1, 8)]
    assert list_segments(tmp_path) == writer.segments
    assert (tmp_path / "journal-00000001").stat().st_size == writer.size_bytes == SEGMENT_BYTES


def test_a_request_is_synced_before_it_is_acknowledged(tmp_path: Path, calls: list[str]) -> None:
    writer = JournalWriter(tmp_path, 0, SMALL)
    assert calls == [
        "pwrite", "fsync", "rename",  # space
        "pwrite", "fdatasync", "rename", "fsync",  # the header, and the entry of the folder
    ]  # fmt: skip
    calls.clear()
    append(writer, b"a", b"b")
    assert calls == ["pwrite", "fdatasync"], "one of each for a group"


def test_a_segment_is_filled_to_its_last_byte(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, 0, SMALL)
    append(writer, b"x" * FITS)
    assert len(writer.segments) == 1
    append(writer, b"")
    assert [segment.first_seq for segment in writer.segments] == [1, 2]
    append(writer, b"x" * (FITS + 1))
    assert [path.stat().st_size for path in sorted(tmp_path.iterdir())] == [SMALL, SMALL, SMALL + 1]
    assert bodies(tmp_path, 3) == [b"x" * FITS, b"", b"x" * (FITS + 1)]
    assert writer.size_bytes == 3 * SMALL


def test_an_opened_journal_leaves_other_files_of_the_process_alone(tmp_path: Path) -> None:
    before = [os.fstat(number) for number in range(3)]
    writer = JournalWriter(tmp_path, 0, SMALL)
    append(writer, b"x" * FITS)
    append(writer, b"y")
    writer.close()
    writer.close()
    after = [os.fstat(number) for number in range(3)]
    assert [each[:3] for each in after] == [each[:3] for each in before]


def opened(directory: Path) -> int:
    links = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.exists()]
    return sum(link.startswith(str(directory)) for link in links)


def test_only_the_current_segment_is_open(tmp_path: Path) -> None:
    writer = JournalWriter(tmp_path, 0, SMALL)
    for _ in range(5):
        append(writer, b"x" * FITS)
    assert opened(tmp_path) == 1
    writer.close()
    assert opened(tmp_path) == 0


def fail_once(monkeypatch: pytest.MonkeyPatch, name: str, change: Callable[..., object]) -> None:
    original, is_first = getattr(os, name), [True]

    def call(*arguments: object) -> object:
        if is_first.pop() if is_first else False:
            return change(original, *arguments)
        return original(*arguments)

    monkeypatch.setattr(os, name, call)


def broken(_: object, *__: object) -> object:
    raise OSError(5, "Input/output error")


def shortened(original: Callable[..., int], fd: int, data: bytes, offset: int) -> int:
    return original(fd, data[:10], offset)


@pytest.mark.parametrize(
    ("name", "change", "reason"),
    [
        ("fdatasync", broken, "Input/output error"),
        ("pwrite", broken, "Input/output error"),
        ("pwrite", shortened, "No space left on device"),
    ],
)
def test_after_an_error_the_same_number_is_given_again_in_a_new_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, change: Callable[..., object],
    reason: str,
) -> None:  # fmt: skip
    writer = JournalWriter(tmp_path, 0, SMALL)
    append(writer, b"kept")
    fail_once(monkeypatch, name, change)
    with pytest.raises(StoreFull, match=f"cannot write the journal in .*: {reason}; new data is"):
        append(writer, b"lost", b"lost")
    assert (writer.last_seq, opened(tmp_path)) == (1, 0)
    assert append(writer, b"again") == 2
    assert [segment.first_seq for segment in writer.segments] == [1, 2]
    assert bodies(tmp_path, 2) == [b"kept", b"again"], "the unacknowledged one is not read"


def test_space_that_cannot_be_claimed_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = JournalWriter(tmp_path, 0, SMALL)
    fail_once(monkeypatch, "pwrite", shortened)
    with pytest.raises(StoreFull, match="No space left on device"):
        writer.prepare()
    assert names(tmp_path) == ["journal-00000001"]


def test_space_is_claimed_before_it_is_needed_and_only_once(
    tmp_path: Path, calls: list[str]
) -> None:
    size = 5 << 19
    writer = JournalWriter(tmp_path, 0, size)
    writer.prepare()
    assert names(tmp_path) == ["journal-00000001", "spare"]
    assert (tmp_path / "spare").stat().st_size == size
    assert set((tmp_path / "spare").read_bytes()) == {0}
    calls.clear()
    writer.prepare()
    assert calls == []
    append(writer, b"x" * (2 << 20))
    calls.clear()
    append(writer, b"y" * (2 << 20))
    assert calls == ["pwrite", "fdatasync", "rename", "fsync", "pwrite", "fdatasync"], (
        "nothing had to be claimed"
    )
    assert names(tmp_path) == ["journal-00000001", "journal-00000002"]
    assert (tmp_path / "journal-00000002").stat().st_size == size


def test_space_for_a_larger_request_is_claimed_although_there_is_a_spare(
    tmp_path: Path, calls: list[str]
) -> None:
    writer = JournalWriter(tmp_path, 0, SMALL)
    writer.prepare()
    calls.clear()
    append(writer, b"x" * (FITS + 1))
    claimed, begun, written = ["pwrite", "fsync", "rename"], ["pwrite", "fdatasync"], ["rename"]
    assert calls == [*claimed, *begun, *written, "fsync", *begun]


def test_a_spare_that_cannot_be_opened_closes_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = [os.fstat(number)[:3] for number in range(3)]
    writer = JournalWriter(tmp_path, 0, SMALL)
    writer.prepare()
    append(writer, b"x" * FITS)
    fail_once(monkeypatch, "open", broken)
    with pytest.raises(StoreFull, match="Input/output error"):
        append(writer, b"y")
    assert [os.fstat(number)[:3] for number in range(3)] == before
    assert append(writer, b"y") == 2


def segments(tmp_path: Path, sizes: Sequence[int]) -> JournalWriter:
    writer = JournalWriter(tmp_path, 0, SMALL)
    for size in sizes:
        append(writer, b"x" * size)
    return writer


@pytest.mark.parametrize(("applied", "left"), [(0, 3), (1, 2), (2, 1), (3, 1)])
def test_a_segment_is_free_once_its_last_request_is_applied(
    tmp_path: Path, applied: int, left: int
) -> None:
    writer = segments(tmp_path, [FITS] * 3)
    assert writer.recycle(applied) == 3 - left
    assert [segment.number for segment in writer.segments] == [1, 2, 3][-left:]
    assert bodies(tmp_path, 3, after=applied) == [b"x" * FITS] * (3 - applied)


def test_one_free_segment_of_the_usual_size_is_kept_as_spare(tmp_path: Path) -> None:
    writer = segments(tmp_path, [FITS, FITS, FITS])
    writer.recycle(3)
    assert names(tmp_path) == ["journal-00000003", "spare"]


def test_a_free_segment_of_another_size_is_removed(tmp_path: Path) -> None:
    writer = segments(tmp_path, [1, FITS + 1, FITS])
    writer.recycle(1)
    (tmp_path / "spare").unlink()
    writer.recycle(3)
    assert names(tmp_path) == ["journal-00000003"]
