"""The journal: synced requests are read back, torn tails dropped, damage is reported."""

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingero.errors import StoreDamaged, StoreFull
from ingero.storage.journal.frames import Frame, decode_frame, encode_frame, list_segments
from ingero.storage.journal.inspect import inspect_journal, recoverable_frames
from ingero.storage.journal.reader import JournalReader
from ingero.storage.journal.writer import JournalWriter

SMALL = 4096


def write(directory: Path, groups: list[list[bytes]], last_seq: int = 0) -> JournalWriter:
    writer = JournalWriter(directory, last_seq, SMALL)
    for group in groups:
        writer.append([(1, body) for body in group], received_us=5)
    return writer


def read_all(directory: Path, durable: int, after: int = 0) -> list[bytes]:
    reader = JournalReader(directory, after)
    try:
        return [frame.body for frame in reader.read(durable, 1 << 30)]
    finally:
        reader.close()


def damage(path: Path, marker: bytes) -> None:
    data = bytearray(path.read_bytes())
    data[data.index(marker)] ^= 0x10
    path.write_bytes(data)


def test_a_segment_that_cannot_be_begun_leaves_no_file_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A failing disk is retried many times."""
    writer = write(tmp_path, [[b"x"]])

    def broken(_: Path) -> None:
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("ingero.storage.journal.writer.sync_directory", broken)
    opened = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(100):
        with pytest.raises(StoreFull, match="Input/output error"):
            writer.append([(1, b"y" * SMALL)], received_us=5)
    # other parts of this process may open a few
    assert len(list(Path("/proc/self/fd").iterdir())) < opened + 50
    monkeypatch.undo()
    assert writer.append([(1, b"y" * SMALL)], received_us=5) == 2
    writer.close()


@given(
    st.binary(max_size=50),
    st.integers(0, 2**63),
    st.integers(0, 2**63),
    st.integers(0, 7),
    st.integers(0, 3),
)
def test_frame_round_trip_and_any_flipped_bit_is_noticed(
    body: bytes, seq: int, synced: int, bit: int, signal: int
) -> None:
    frame = Frame(seq, synced, 123, signal, body)
    encoded = bytearray(encode_frame(frame))
    assert decode_frame(bytes(encoded), 0) == frame
    for position in range(len(encoded)):
        encoded[position] ^= 1 << bit
        assert decode_frame(bytes(encoded), 0) is None
        encoded[position] ^= 1 << bit


def test_requests_come_back_in_order_over_segments(tmp_path: Path) -> None:
    bodies = [bytes([65 + i]) * 700 for i in range(20)]
    writer = write(tmp_path, [bodies[:3], bodies[3:4], *[[body] for body in bodies[4:]]])
    assert writer.last_seq == 20
    assert len(list_segments(tmp_path)) > 3
    assert read_all(tmp_path, 20) == bodies
    assert read_all(tmp_path, 20, after=7) == bodies[7:]
    assert read_all(tmp_path, 9, after=7) == bodies[7:9], "never past what is durable"


def test_a_reader_follows_the_writer_and_reads_in_portions(tmp_path: Path) -> None:
    writer = write(tmp_path, [])
    reader = JournalReader(tmp_path, 0)
    seen = []
    for i in range(12):
        writer.append([(2, b"%02d" % i * 400)], 9)
        seen += reader.read(writer.last_seq, 100)
    assert [(frame.seq, frame.signal, frame.received_us) for frame in seen] == [
        (i + 1, 2, 9) for i in range(12)
    ]
    assert reader.read(writer.last_seq, 100) == []


def test_a_reader_that_has_read_nothing_closes_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, closed = JournalReader(tmp_path, 0), list[int]()
    monkeypatch.setattr(os, "close", closed.append)
    reader.close()
    assert closed == []


def test_a_request_larger_than_a_segment_or_a_window_fits(tmp_path: Path) -> None:
    bodies = [os.urandom(3 << 20), b"small", os.urandom(1 << 20)]
    writer = write(tmp_path, [[body] for body in bodies])
    assert read_all(tmp_path, writer.last_seq) == bodies


def test_an_empty_journal_is_sound(tmp_path: Path) -> None:
    found = inspect_journal(tmp_path, 7)
    assert (found.segments, found.last_seq, found.problems) == ((), 7, ())


def test_a_restart_continues_the_count_in_a_new_segment(tmp_path: Path) -> None:
    write(tmp_path, [[b"a"], [b"b"]]).close()
    found = inspect_journal(tmp_path, 0)
    assert (found.last_seq, found.frames, found.dropped_bytes, found.problems) == (2, 2, 0, ())
    writer = write(tmp_path, [[b"c"]], last_seq=found.last_seq)
    assert writer.last_seq == 3
    assert read_all(tmp_path, 3) == [b"a", b"b", b"c"]


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_torn_last_write_costs_only_what_was_not_acknowledged(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("journal")
    writer = write(directory, [[b"kept-1"], [b"kept-2"]])
    path = writer.segments[-1].path
    before = path.read_bytes()
    writer.append([(1, b"torn-1"), (1, b"torn-2"), (1, b"torn-3")], 5)
    after = path.read_bytes()
    # bytes that did not reach the disk
    holes = data.draw(st.sets(st.integers(0, len(after) - 1), max_size=60))
    torn = bytearray(after)
    for position in holes:
        torn[position] = before[position]
    path.write_bytes(torn)
    found = inspect_journal(directory, 0)
    assert found.problems == ()
    assert found.last_seq >= 2
    assert read_all(directory, found.last_seq)[:2] == [b"kept-1", b"kept-2"]
    assert write(directory, [[b"new"]], found.last_seq).last_seq == found.last_seq + 1
    assert read_all(directory, found.last_seq + 1)[-1] == b"new"


def test_a_flipped_bit_in_an_acknowledged_request_is_named(tmp_path: Path) -> None:
    write(tmp_path, [[b"first"], [b"second"], [b"third"]]).close()
    damage(list_segments(tmp_path)[0].path, b"second")
    (problem,) = inspect_journal(tmp_path, 0).problems
    assert problem.startswith("journal-00000001 is damaged at byte ")
    assert problem.endswith("request 2 cannot be read")
    with pytest.raises(StoreDamaged, match="request 2 cannot be read; run `ingero-echo verify`"):
        read_all(tmp_path, 3)
    assert [frame.body for frame in recoverable_frames(tmp_path, 0)] == [b"first", b"third"]
    assert inspect_journal(tmp_path, 3).problems == (), "what the database has needs no journal"


def test_a_missing_segment_is_named(tmp_path: Path) -> None:
    writer = write(tmp_path, [[bytes([65 + i]) * 1500] for i in range(8)])
    gone = writer.segments[1]
    gone.path.unlink()
    wanted = (
        f"requests {gone.first_seq} to {writer.segments[2].first_seq - 1} are missing before "
        "journal-00000003"
    )
    assert inspect_journal(tmp_path, 0).problems == (wanted,)
    with pytest.raises(StoreDamaged):
        read_all(tmp_path, 8)


def test_a_damaged_segment_header_is_named(tmp_path: Path) -> None:
    writer = write(tmp_path, [[b"x"]])
    damage(writer.segments[0].path, b"INGEROJ1")
    with pytest.raises(StoreDamaged, match="header of this journal segment is damaged"):
        inspect_journal(tmp_path, 0)


def test_applied_segments_are_used_again_and_their_old_frames_stay_silent(tmp_path: Path) -> None:
    writer = write(tmp_path, [[bytes([65 + i]) * 1500] for i in range(8)])
    assert writer.recycle(8) == 3
    assert writer.recycle(8) == 0
    for i in range(8):
        writer.append([(1, b"%d" % i * 1500)], 5)
        writer.recycle(writer.last_seq)
    assert len(list_segments(tmp_path)) == 1
    found = inspect_journal(tmp_path, 14)
    assert (found.last_seq, found.problems) == (16, ())


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small file system")
    mount = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", tmp_path], check=False
    )
    if mount.returncode != 0:
        pytest.skip("this machine does not let us mount a tmpfs")
    try:
        yield tmp_path
    finally:
        subprocess.run(["umount", "-l", tmp_path], check=True)


def test_a_full_disk_refuses_new_requests_and_keeps_the_old(small_disk: Path) -> None:
    writer = JournalWriter(small_disk, 0, 16384)
    acknowledged = 0
    with pytest.raises(
        StoreFull, match="No space left on device; new data is refused until this is fixed"
    ):
        for _ in range(100):
            acknowledged = writer.append([(1, b"x" * 3000)], 5)
    assert acknowledged > 5
    assert read_all(small_disk, acknowledged) == [b"x" * 3000] * acknowledged
    assert inspect_journal(small_disk, 0).last_seq == acknowledged
    writer.recycle(acknowledged)
    assert writer.append([(1, b"again")], 5) == acknowledged + 1, (
        "space given back is used without a restart"
    )
    assert read_all(small_disk, acknowledged + 1, after=acknowledged) == [b"again"]


def test_a_read_only_disk_refuses_with_the_reason(small_disk: Path) -> None:
    writer = JournalWriter(small_disk, 0, 16384)
    writer.append([(1, b"kept")], 5)
    writer.close()
    subprocess.run(["mount", "-o", "remount,ro", small_disk], check=True)
    with pytest.raises(StoreFull, match="Read-only file system"):
        writer.append([(1, b"refused")], 5)
    assert read_all(small_disk, 1) == [b"kept"]
