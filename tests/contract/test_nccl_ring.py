"""The layout of the ring file is the same in C and in Python."""

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.ring_model import ModelRing

from ingero.agent.nccl.build import FOLDER
from ingero.contract.nccl_ring import (
    COMM,
    HEADER,
    MAGIC,
    RECORD,
    VERSION,
    decode_header,
    decode_ring,
    record_checks,
    whole_records,
)
from ingero.errors import ForeignFile, Unavailable


def test_the_c_side_has_the_same_sizes():
    text = (FOLDER / "ring.h").read_text()
    assert f"sizeof(struct record) == {RECORD.itemsize}" in text
    assert f"sizeof(struct comm_entry) == {COMM.itemsize}" in text
    assert f"RING_HEADER_BYTES = {HEADER.itemsize}" in text
    assert f"RING_VERSION = {VERSION}" in text
    assert int(re.search(r"RING_MAGIC (0x\w+)ull", text)[1], 16) == MAGIC


def test_the_c_side_has_the_same_fields_in_the_same_order():
    text = (FOLDER / "ring.h").read_text()
    for name, dtype in (("record", RECORD), ("comm_entry", COMM)):
        body = re.search(rf"struct {name} {{(.*?)\n}};", text, re.S)[1]
        declared = re.findall(r"(\w+)(?:\[\d+\])?(?=[,;])", re.sub(r"//.*", "", body))
        assert tuple(declared) == dtype.names


@given(
    words=st.lists(st.integers(0, 2**64 - 1), min_size=20, max_size=20),
    at=st.integers(0, 19),
    bit=st.integers(0, 63),
)
def test_no_changed_bit_passes_the_check(words, at, bit):
    record = np.array(words, "<u8").view(RECORD)
    record["stamp"] = 5
    record["check"] = record_checks(record)
    assert whole_records(record, 4).all()
    changed = record.copy().view("<u8")
    changed[at] ^= np.uint64(1 << bit)
    assert not whole_records(changed.view(RECORD), 4).any()


def test_a_copied_ring_reads_offline_whatever_it_was_doing(tmp_path):
    ring = ModelRing(tmp_path / "ring", slots=8)
    for _ in range(10):
        ring.write()
    ring.reserve()
    copy = decode_ring(ring.path.read_bytes(), "ring")
    assert (copy.overwritten, copy.torn) == (3, 1)
    assert copy.records["count"].tolist() == list(range(3, 10))
    assert copy.header.job == "job-1"


def test_cut_and_foreign_files_are_refused():
    with pytest.raises(ForeignFile, match="too few"):
        decode_header(b"abc", "x")
    with pytest.raises(ForeignFile, match="not an NCCL ring"):
        decode_header(b"y" * 4096, "x")


@given(data=st.binary(max_size=6000), tail=st.binary(max_size=200))
def test_no_bytes_crash_the_parser(data, tail):
    header = np.zeros(1, HEADER)
    header["magic"], header["version"], header["slots"], header["comms"] = MAGIC, VERSION, 8, 1
    header["header_bytes"], header["comm_bytes"], header["record_bytes"] = (
        HEADER.itemsize,
        COMM.itemsize,
        RECORD.itemsize,
    )
    for body in (data, header.tobytes() + data + tail):
        try:
            copy = decode_ring(body, "x")
        except (ForeignFile, Unavailable):
            continue
        else:
            assert len(copy.records) + copy.torn <= 8
