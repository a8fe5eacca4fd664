"""Frames, reading in portions, and what an inspection finds: exact numbers, and damage by name."""

import os
import struct
import zlib
from pathlib import Path

import pytest

from ingero.errors import StoreDamaged
from ingero.storage.journal.attempts import Attempts
from ingero.storage.journal.frames import (
    DIGEST_BYTES,
    FRAME_HEAD,
    FRAME_MAGIC,
    MAX_BODY_BYTES,
    SEGMENT_HEAD,
    Frame,
    decode_frame,
    encode_frame,
    encode_head,
    list_segments,
    read_segment,
    request_digest,
)
from ingero.storage.journal.inspect import inspect_journal, recoverable_frames
from ingero.storage.journal.reader import JournalReader
from ingero.storage.journal.writer import JournalWriter

SMALL = 4096


def write(directory: Path, *groups: list[bytes], segment_bytes: int = SMALL) -> JournalWriter:
    writer = JournalWriter(directory, 0, segment_bytes)
    for group in groups:
        writer.append([(1, body) for body in group], 5)
    writer.close()
    return writer


def flip(path: Path, marker: bytes) -> int:
    """Damage the frame that holds a text; return where the frame begins."""
    data = bytearray(path.read_bytes())
    at = data.index(marker)
    data[at] ^= 0x10
    path.write_bytes(data)
    return at - FRAME_HEAD.size


def test_a_digest_depends_on_content_and_kind_and_on_nothing_else() -> None:
    assert (DIGEST_BYTES, MAX_BODY_BYTES) == (16, 16 << 20)
    assert request_digest(1, b"body").hex() == "7a6445a8b2c706df7e66fe78b73a5b94"
    assert len({request_digest(1, b"body"), request_digest(2, b"body")}) == 2


def test_a_part_of_a_frame_is_none() -> None:
    encoded = encode_frame(Frame(1, 0, 5, 1, b"body"))
    assert all(decode_frame(encoded[:end], 0) is None for end in range(len(encoded)))
    assert decode_frame(b"xx" + encoded, 2) == Frame(1, 0, 5, 1, b"body")


@pytest.mark.parametrize(("size", "is_read"), [(MAX_BODY_BYTES, True), (MAX_BODY_BYTES + 1, False)])
def test_a_frame_has_at_most_16_mib(size: int, is_read: bool) -> None:
    frame = Frame(1, 0, 5, 1, bytes(size))
    assert (decode_frame(encode_frame(frame), 0) == frame) is is_read


def test_a_header_needs_its_mark_and_its_checksum(tmp_path: Path) -> None:
    path = tmp_path / "journal-00000003"
    path.write_bytes(encode_head(3, 9))
    assert read_segment(path)[1:] == (3, 9)
    other = struct.pack("<8sQQ", b"INGEROJ2", 3, 9)
    for wrong in (
        encode_head(3, 9)[:-1],
        SEGMENT_HEAD.pack(b"INGEROJ1", 3, 9, 0),
        SEGMENT_HEAD.pack(b"INGEROJ2", 3, 9, zlib.crc32(other)),
    ):
        path.write_bytes(wrong)
        with pytest.raises(StoreDamaged, match="header of this journal segment is damaged"):
            read_segment(path)


def test_what_waits_is_counted_with_its_bytes(tmp_path: Path) -> None:
    write(tmp_path, [b"abc"], [b"de", b"f" * 3900], [b"g"])
    found = inspect_journal(tmp_path, 0)
    assert (found.last_seq, found.frames, found.problems) == (4, 4, ())
    assert found.waiting_bytes == 4 * FRAME_HEAD.size + 3906
    assert found.dropped_bytes == 0
    later = inspect_journal(tmp_path, 2)
    assert (later.last_seq, later.frames) == (4, 2)
    assert later.waiting_bytes == 2 * FRAME_HEAD.size + 3901


def test_a_torn_write_is_counted_up_to_a_mebibyte(tmp_path: Path) -> None:
    path = write(tmp_path, [b"kept"], segment_bytes=4 << 20).segments[0].path
    end = SEGMENT_HEAD.size + FRAME_HEAD.size + 4
    for torn in (b"", b"\1", b"\0\0\2", b"\3" * (1 << 20), b"\4" * ((1 << 20) + 9)):
        data = bytearray(path.read_bytes())
        data[end : end + len(torn)] = torn
        path.write_bytes(data)
        found = inspect_journal(tmp_path, 0)
        assert (found.dropped_bytes, found.last_seq) == (min(len(torn), 1 << 20), 1)


def test_an_old_frame_behind_the_last_one_is_not_torn(tmp_path: Path) -> None:
    path = write(tmp_path, [b"kept"]).segments[0].path
    data = bytearray(path.read_bytes())
    end = SEGMENT_HEAD.size + FRAME_HEAD.size + 4
    old = encode_frame(Frame(1, 0, 5, 1, b"of an earlier use"))
    data[end : end + len(old)] = old
    path.write_bytes(data)
    found = inspect_journal(tmp_path, 0)
    assert (found.dropped_bytes, found.last_seq, found.problems) == (0, 1, ())


def test_segments_that_are_applied_are_not_read_and_later_ones_are(tmp_path: Path) -> None:
    writer = write(tmp_path, [b"a" * 3900], [b"b" * 3900], [b"c" * 3900])
    flip(writer.segments[0].path, b"aaaa")
    for applied, frames in ((1, 2), (2, 1), (3, 0)):
        found = inspect_journal(tmp_path, applied)
        assert (found.problems, found.frames, found.last_seq) == ((), frames, 3)


@pytest.mark.parametrize(
    ("damaged", "words", "frames", "last"),
    [
        (b"one", "request 1 cannot be read", 0, 1),
        (b"two", "requests 2 to 3 cannot be read", 1, 3),
        (b"four", "request 4 cannot be read", 3, 4),
        (b"five", None, 4, 4),
    ],
)
def test_the_acknowledged_requests_that_are_lost_are_named(
    tmp_path: Path, damaged: bytes, words: str | None, frames: int, last: int
) -> None:
    """The last one may have been torn; two and three were acknowledged together."""
    path = write(tmp_path, [b"one"], [b"two", b"three"], [b"four"], [b"five"]).segments[0].path
    at = flip(path, damaged)
    found = inspect_journal(tmp_path, 0)
    problem = words and f"journal-00000001 is damaged at byte {at}: {words}"
    assert found.problems == ((problem,) if problem else ())
    assert (found.frames, found.last_seq) == (frames, last)


def test_a_loss_at_the_end_of_a_segment_is_known_from_the_next(tmp_path: Path) -> None:
    writer = write(tmp_path, [b"a" * 1800], [b"b" * 1800], [b"c" * 1800], [b"d" * 1800])
    assert [segment.first_seq for segment in writer.segments] == [1, 3]
    at = flip(writer.segments[0].path, b"bbbb")
    found = inspect_journal(tmp_path, 0)
    assert found.problems == (
        f"journal-00000001 is damaged at byte {at}: request 2 cannot be read",
    )
    assert (found.frames, found.last_seq) == (3, 4)
    assert inspect_journal(tmp_path, 2).problems == ()


def test_a_missing_segment_is_not_taken_for_damage_of_the_one_before(tmp_path: Path) -> None:
    writer = write(tmp_path, *[[letter * 3900] for letter in (b"a", b"b", b"c")])
    writer.segments[1].path.unlink()
    found = inspect_journal(tmp_path, 0)
    assert found.problems == ("requests 2 to 2 are missing before journal-00000003",)
    assert (found.frames, found.last_seq) == (2, 3)


def repeated(tmp_path: Path) -> None:
    """Make a journal in which request 2 was written, not acknowledged, and written again."""
    first = JournalWriter(tmp_path, 0, SMALL)
    first.append([(1, b"kept"), (1, b"not acknowledged")], 5)
    first.close()
    second = JournalWriter(tmp_path, 1, SMALL)
    second.append([(1, b"again")], 5)
    second.close()


def test_of_a_request_that_was_written_twice_the_acknowledged_one_is_read(tmp_path: Path) -> None:
    repeated(tmp_path)
    reader = JournalReader(tmp_path, 0)
    assert [frame.body for frame in reader.read(2, 1000)] == [b"kept", b"again"]
    found = inspect_journal(tmp_path, 0)
    assert (found.frames, found.last_seq, found.problems) == (2, 2, ())
    assert found.waiting_bytes == 2 * FRAME_HEAD.size + len(b"kept" + b"again")
    assert [frame.body for frame in recoverable_frames(tmp_path, 0)] == [b"kept", b"again"]
    reader.close()


def test_only_what_is_not_applied_is_recovered(tmp_path: Path) -> None:
    writer = write(tmp_path, [b"one"], [b"two"], [b"x" * 3900], [b"four"])
    data = writer.segments[0].path.read_bytes()
    writer.segments[0].path.write_bytes(data[:-4] + FRAME_MAGIC)
    assert [frame.seq for frame in recoverable_frames(tmp_path, 1)] == [2, 3, 4]
    assert [frame.seq for frame in recoverable_frames(tmp_path, 4)] == []
    flip(writer.segments[0].path, b"INGEROJ1")
    assert [frame.seq for frame in recoverable_frames(tmp_path, 0)] == [1, 2, 3, 4]


def seqs(reader: JournalReader, durable: int, max_bytes: int) -> list[int]:
    return [frame.seq for frame in reader.read(durable, max_bytes)]


def test_a_portion_ends_with_the_request_that_fills_it(tmp_path: Path) -> None:
    write(tmp_path, *[[b"0123456789"]] * 6)
    reader = JournalReader(tmp_path, 0)
    assert [seqs(reader, 6, size) for size in (1, 10, 11, 20)] == [[1], [2], [3, 4], [5, 6]]
    assert seqs(reader, 6, 1000) == []
    reader.close()
    late = JournalReader(tmp_path, 1)
    assert [seqs(late, durable, 1000) for durable in (1, 2, 5)] == [[], [2], [3, 4, 5]]
    late.close()


def test_a_large_request_is_followed_by_others_in_its_segment(tmp_path: Path) -> None:
    large = os.urandom(MAX_BODY_BYTES)
    write(tmp_path, [b"a"], [large], [b"b"], segment_bytes=20 << 20)
    reader = JournalReader(tmp_path, 0)
    assert [frame.body for frame in reader.read(3, 1 << 30)] == [b"a", large, b"b"]
    reader.close()


def open_files(directory: Path) -> int:
    links = [str(link.readlink()) for link in Path("/proc/self/fd").iterdir() if link.exists()]
    return sum(link.startswith(str(directory)) for link in links)


def test_a_reader_has_one_file_open_and_none_once_closed(tmp_path: Path) -> None:
    write(tmp_path, *[[b"x" * 3900]] * 5)
    before = [os.fstat(number)[:3] for number in range(3)]
    reader = JournalReader(tmp_path, 0)
    reader.close()
    assert seqs(reader, 5, 1 << 30) == [1, 2, 3, 4, 5]
    assert open_files(tmp_path) == 1
    reader.close()
    reader.close()
    assert open_files(tmp_path) == 0
    assert [os.fstat(number)[:3] for number in range(3)] == before


def test_a_missing_first_segment_is_named(tmp_path: Path) -> None:
    writer = write(tmp_path, [b"x" * 3900], [b"y" * 3900])
    writer.segments[0].path.unlink()
    assert [segment.number for segment in list_segments(tmp_path)] == [2]
    with pytest.raises(StoreDamaged, match="the segment with request 1 is missing"):
        JournalReader(tmp_path, 0).read(2, 1000)


def test_a_file_of_attempts_with_missing_fields_counts_none_of_them(tmp_path: Path) -> None:
    path = tmp_path / "attempts"
    path.write_bytes(b'{"applied_seq": 3}')
    assert [Attempts(path, 3).is_careful for _ in range(3)] == [False, False, True]
    path.write_bytes(b'{"strikes": 9}')
    attempts = Attempts(path, 1)
    assert attempts.begin(1)
    assert attempts.begin(2)
    attempts.end()
    attempts.end()
    assert not path.exists()
