"""Unpacking is bounded by the size of the file, whatever the file claims to hold."""

import gzip
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingero.errors import MalformedInput, TooLarge
from ingero.importers.gzip_file import MAX_MEMBERS, SMALL_BYTES, unpack

PATH = Path("trace.json.gz")


@settings(max_examples=50, deadline=None)
@given(st.lists(st.binary(max_size=200_000), max_size=4))
def test_all_members_are_read_in_order(parts: list[bytes]) -> None:
    packed = b"".join(gzip.compress(part, 1) for part in parts)
    assert unpack(PATH, packed, 1 << 30) == b"".join(parts)


def test_zeros_are_refused_while_they_are_unpacked() -> None:
    packer = zlib.compressobj(9, zlib.DEFLATED, zlib.MAX_WBITS | 16)
    zeros = bytes(1 << 20)
    packed = b"".join(packer.compress(zeros) for _ in range(2 * SMALL_BYTES >> 20)) + packer.flush()
    with pytest.raises(TooLarge, match=f"trace.json.gz: unpacks to more than {SMALL_BYTES} bytes"):
        unpack(PATH, packed, 1 << 30)


def test_very_many_empty_members_are_refused() -> None:
    with pytest.raises(TooLarge, match="gzip members"):
        unpack(PATH, gzip.compress(b"") * (MAX_MEMBERS + 1), 1 << 30)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=100), st.integers(0, 60))
def test_cut_and_foreign_bytes_are_refused(content: bytes, cut: int) -> None:
    packed = gzip.compress(content)
    try:
        assert unpack(PATH, packed[:cut] + content, 1 << 20) is not None
    except MalformedInput:
        return
