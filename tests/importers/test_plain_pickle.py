"""Pickles of strangers: plain values are read, everything else is refused before it is built."""

import pickle
import struct
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingero.errors import MalformedInput
from ingero.importers.plain_pickle import check_operations, load_plain

SCALARS: st.SearchStrategy[Any] = st.one_of(
    st.none(), st.booleans(), st.integers(-(2**80), 2**80), st.floats(allow_nan=False),
    st.text(max_size=20), st.binary(max_size=20),
)  # fmt: skip
PLAIN = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=5),
        st.lists(inner, max_size=4).map(tuple),
        st.dictionaries(st.text(max_size=5), inner, max_size=5),
        st.sets(st.integers(), max_size=4),
    ),
    max_leaves=30,
)
HEAD = b"\x80\x04"
# The unpickler drops the rest of a frame that ends within a text, and reads operations where the
# check of them saw the data of another text.
PLACE = b"Nr\xff\xff\xff\x00.".ljust(64, b"N") + b"."
CUT = struct.pack("<Q", 4) + b"\x8c\x14ab" + b"x" * 18 + b"U\x40" + PLACE
BOMBS = {
    "frame that ends within a text": HEAD + b"\x95" + CUT,
    "frame within a frame": HEAD + b"\x95" + struct.pack("<Q", 9 + 4) + b"\x95" + CUT,
    "place in the memo": HEAD + b"Nr\xff\xff\xff\x0f.",
    "bytearray": b"\x80\x05\x96" + struct.pack("<Q", 1 << 31) + b".",
    "bytes": HEAD + b"\x8e" + struct.pack("<Q", 1 << 40) + b".",
    "short bytes": HEAD + b"B\xff\xff\xff\x7f.",
    "text": HEAD + b"\x8d" + struct.pack("<Q", 1 << 40) + b".",
    "string": HEAD + b"T\xff\xff\xff\x7f.",
    "number": HEAD + b"\x8b\xff\xff\xff\x7f.",
    "frame": HEAD + b"\x95" + struct.pack("<Q", 1 << 40) + b"N.",
    "written place": HEAD + b"Np999999999\n.",
    "written number": HEAD + b"I" + b"9" * 4000 + b"\n.",
    "buffer": b"\x80\x05\x97.",
}


@settings(max_examples=200, deadline=None)
@given(PLAIN, st.sampled_from([2, 3, 4, 5]))
def test_plain_values_are_read_in_every_protocol(value: Any, protocol: int) -> None:
    data = pickle.dumps(value, protocol)
    if b"c" + b"_codecs" in data or b"cbuiltins" in data or b"c__builtin__" in data:
        return  # before protocol 4, sets and bytes need a global
    assert load_plain(data) == value


@settings(max_examples=500, deadline=None)
@given(st.binary(max_size=60))
def test_any_bytes_are_plain_or_refused(data: bytes) -> None:
    try:
        load_plain(HEAD + data)
    except MalformedInput:
        return


@settings(max_examples=200, deadline=None)
@given(PLAIN, st.data())
def test_damaged_pickles_are_read_or_refused(value: Any, choose: st.DataObject) -> None:
    data = bytearray(pickle.dumps(value, 4))
    for _ in range(choose.draw(st.integers(1, 5))):
        data[choose.draw(st.integers(0, len(data) - 1))] = choose.draw(st.integers(0, 255))
    try:
        load_plain(bytes(data))
    except MalformedInput:
        return


@pytest.mark.parametrize("data", BOMBS.values(), ids=BOMBS.keys())
def test_what_a_few_bytes_announce_is_never_allocated(data: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(MalformedInput):
            load_plain(data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize(
    "data",
    [
        HEAD + b"cos\nsystem\n.",
        HEAD + b"\x8c\x02os\x8c\x06system\x93.",
        HEAD + b"(ios\nsystem\n.",
        HEAD + b"N)R.",
        HEAD + b"N}b.",
        HEAD + b"N)\x81.",
        HEAD + b"\x82\x01.",
        HEAD + b"Pname\n.",
        HEAD + b"NQ.",
    ],
)
def test_no_operation_that_makes_an_object_of_a_class_is_accepted(data: bytes) -> None:
    with pytest.raises(MalformedInput, match="plain containers only"):
        check_operations(data)
