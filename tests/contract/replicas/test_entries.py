"""Entries of the cluster log: what is written is read, and anything else is refused (F058)."""

import zlib

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingero.contract.push.decode import NodeReport
from ingero.contract.replicas import entries
from ingero.contract.replicas.rows import ROW, name_check, unpack_rows
from ingero.errors import MalformedInput, TooLarge

REPORT = NodeReport("n1", "c", job="j", score=0.5, state="active", sent_ns=7)


@pytest.mark.parametrize(
    "entry",
    [
        entries.Rows("a", "c", b"123", (entries.Named(REPORT, 3, 1),)),
        entries.Measured("a", 7, b"x"),
        entries.Tick("a"),
        entries.Here("a", "rules", True, {1000: b"digest"}),
        entries.Said("a", (1,), (("target", "episode", "begin"),)),
        entries.Kept("a", "1-0"),
    ],
)
def test_what_is_written_is_read(entry: entries.Entry) -> None:
    assert entries.decode_entry(entries.encode_entry(entry)) == entry


@given(data=st.binary(max_size=200))
def test_anything_else_is_refused(data: bytes) -> None:
    try:
        entries.decode_entry(data)
    except MalformedInput:
        return
    raise AssertionError("a random text is an entry")


@pytest.mark.parametrize("author", ["", "two words", "a" * 200, "a\n"])
def test_names_cannot_forge_a_line(author: str) -> None:
    with pytest.raises(MalformedInput):
        entries.decode_entry(entries.encode_entry(entries.Tick(author)))


def test_entries_that_are_too_long_are_refused() -> None:
    with pytest.raises(TooLarge):
        entries.decode_entry(bytes(entries.MAX_ENTRY_BYTES + 1))


def test_bodies_are_packed_and_bombs_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    bodies = [("c", b"one"), ("d", b"two")]
    packed = entries.pack_bodies(bodies)
    assert entries.unpack_bodies(packed) == bodies
    for damaged in (packed[:-6], b"", b"nonsense", zlib.compress(msgspec.msgpack.encode([1]))):
        with pytest.raises(MalformedInput):
            entries.unpack_bodies(damaged)
    monkeypatch.setattr(entries, "MAX_UNPACKED_BYTES", 1000)
    with pytest.raises(TooLarge):
        entries.unpack_bodies(entries.pack_bodies([("c", bytes(2000))]))


def row(**values: float) -> bytes:
    packed = np.zeros(1, ROW)
    for name, value in values.items():
        packed[name] = value
    return packed.tobytes()


def test_rows_have_a_valid_score_and_state() -> None:
    assert len(unpack_rows(row(score=0.5) * 2)) == 2
    assert len(unpack_rows(row(score=np.nan, state=-1))) == 1
    for wrong in (b"x", row(score=1.5), row(score=np.nan), row(score=0.5, state=3)):
        with pytest.raises(MalformedInput):
            unpack_rows(wrong)


def test_a_check_is_never_that_of_an_empty_row() -> None:
    assert name_check("n1") != name_check("n2") != 0
