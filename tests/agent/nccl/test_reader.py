"""The ring reader against a writer that stops at every possible point (F068)."""

import os
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.ring_model import SLOTS, ModelRing

from ingero.agent.nccl.reader import UNFINISHED_TIMEOUT_S, RingReader
from ingero.contract.nccl_ring import HEADER, RECORD
from ingero.errors import AuthError, ForeignFile, Unavailable


@pytest.fixture
def ring(tmp_path):
    model = ModelRing(tmp_path / "ingero-nccl-1-1")
    yield model
    model.close()


def counts(records):
    return records["count"].tolist()


def test_records_come_once_and_in_order(ring):
    reader = RingReader(ring.path)
    for _ in range(3):
        ring.write()
    assert counts(reader.poll(0.0)) == [0, 1, 2]
    assert counts(reader.poll(0.1)) == []
    ring.write()
    assert counts(reader.poll(0.2)) == [3]
    assert (reader.missed, reader.torn, reader.read) == (0, 0, 4)


def test_the_header_identifies_the_process_of_the_ring(ring):
    header = RingReader(ring.path).header
    assert (header.job, header.global_rank, header.local_rank, header.world_size) == (
        "job-1",
        7,
        None,
        16,
    )


def test_overrun_is_counted_exactly(ring):
    reader = RingReader(ring.path)
    for _ in range(SLOTS + 10):
        ring.write()
    assert counts(reader.poll(0.0)) == list(range(10, SLOTS + 10))
    assert reader.missed == 10


def test_what_was_overwritten_before_the_agent_came_is_not_its_loss(ring):
    for _ in range(SLOTS + 10):
        ring.write()
    reader = RingReader(ring.path)
    assert len(reader.poll(0.0)) == SLOTS
    assert (reader.missed, reader.oldest) == (0, 10)


def test_a_record_being_written_is_waited_for(ring):
    reader = RingReader(ring.path)
    ring.write()
    slow = ring.reserve()
    ring.write()
    assert counts(reader.poll(0.0)) == [0]
    ring.put(slow, ring.fill(slow))
    assert counts(reader.poll(UNFINISHED_TIMEOUT_S / 2)) == [1, 2]
    assert reader.torn == 0


def test_a_record_left_unfinished_costs_only_itself(ring):
    reader = RingReader(ring.path)
    dead = ring.reserve()
    ring.put(dead, ring.fill(dead), cut=40)
    ring.write()
    assert counts(reader.poll(0.0)) == []
    assert counts(reader.poll(UNFINISHED_TIMEOUT_S)) == [1]
    assert (reader.missed, reader.torn) == (0, 1)


def test_the_last_poll_waits_for_nothing(ring):
    reader = RingReader(ring.path)
    ring.write()
    ring.reserve()
    ring.write()
    assert counts(reader.poll(0.0, is_final=True)) == [0, 2]
    assert reader.torn == 1


def test_a_flipped_bit_is_never_delivered(ring):
    reader = RingReader(ring.path)
    index = ring.reserve()
    data = bytearray(ring.fill(index))
    for at in range(16, RECORD.itemsize):
        data[at] ^= 1
        ring.put(index, bytes(data))
        assert len(reader.poll(0.0)) == 0
        data[at] ^= 1
    ring.put(index, bytes(data))
    assert counts(reader.poll(0.0)) == [0]


def test_a_truncated_ring_is_an_error_and_not_a_crash(ring):
    reader = RingReader(ring.path)
    ring.write()
    os.ftruncate(ring.fd, HEADER.itemsize + 10)
    with pytest.raises(ForeignFile, match="truncated"):
        reader.poll(0.0)


def test_a_ring_that_goes_backwards_is_an_error(ring):
    reader = RingReader(ring.path)
    ring.write()
    reader.poll(0.0)
    ring.head = 0
    ring.write_header()
    with pytest.raises(ForeignFile, match="backwards"):
        reader.poll(0.0)


@pytest.mark.parametrize(
    ("field", "value", "error", "message"),
    [
        ("magic", 0, Unavailable, "still creating it"),
        ("magic", 99, ForeignFile, "not an NCCL ring"),
        ("version", 2, ForeignFile, "layout 2"),
        ("record_bytes", 96, ForeignFile, "sizes"),
        ("slots", 63, ForeignFile, "damaged"),
        ("slots", 1 << 30, ForeignFile, "damaged"),
        ("slots", 128, ForeignFile, "truncated"),
    ],
)
def test_foreign_headers_are_refused_with_the_reason(ring, field, value, error, message):
    ring.header[field] = value
    ring.write_header()
    with pytest.raises(error, match=message):
        RingReader(ring.path)


def test_only_private_plain_files_are_trusted(ring, tmp_path):
    ring.path.chmod(0o640)
    with pytest.raises(AuthError, match="others may read"):
        RingReader(ring.path)
    ring.path.chmod(0o600)
    link = tmp_path / "link"
    link.symlink_to(ring.path)
    with pytest.raises(ForeignFile, match="regular file"):
        RingReader(link)
    os.link(ring.path, tmp_path / "hard")
    with pytest.raises(ForeignFile, match="single link"):
        RingReader(ring.path)
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo, 0o600)
    with pytest.raises(ForeignFile, match="regular file"):
        RingReader(fifo)


STEPS = st.lists(
    st.sampled_from(["write", "reserve", "half", "finish", "poll", "wait"]), max_size=200
)


@settings(max_examples=60, deadline=None)
@given(steps=STEPS, slots=st.sampled_from([4, 8, 64]))
def test_every_record_is_delivered_missed_or_torn_once(steps, slots):
    """Delivered + missed + torn = published, in order and unharmed.

    That holds whatever a writer does and wherever it stops.
    """
    with tempfile.TemporaryDirectory() as folder:
        ring = ModelRing(Path(folder) / "ingero-nccl-1-1", slots)
        reader, now_s, delivered, open_indices = RingReader(ring.path), 0.0, [], []
        for step in steps:
            if step == "write":
                ring.write()
            elif step in ("reserve", "half"):
                index = ring.reserve()
                open_indices.append(index)
                if step == "half":
                    ring.put(index, ring.fill(index), cut=64)
            elif step == "finish" and open_indices:
                index = open_indices.pop(0)
                # perhaps a lap too late, over somebody else's record
                ring.put(index, ring.fill(index))
            elif step == "poll":
                delivered += counts(reader.poll(now_s))
            elif step == "wait":
                now_s += UNFINISHED_TIMEOUT_S
                delivered += counts(reader.poll(now_s))
        delivered += counts(reader.poll(now_s, is_final=True))
        assert delivered == sorted(set(delivered))
        assert len(delivered) + reader.missed + reader.torn == ring.head
        assert reader.read == len(delivered)
        ring.close()
        reader.close()


def test_times_are_on_the_host_clock(ring):
    reader = RingReader(ring.path)
    offset = 10**18 - 10**12
    for _ in range(5):
        ring.write(
            gpu_start_ns=10**12 + 20,
            gpu_stop_ns=10**12 + 500,
            enqueue_ns=10**18,
            host_stop_ns=10**18 + 520,
        )
    columns = reader.collectives(reader.poll(0.0), "node-1")
    assert reader.clock is not None
    assert abs(reader.clock.offset_ns - offset) <= reader.clock.error_ns == 20
    assert np.abs(columns.end_ns - (10**18 + 500)).max() <= 20
    assert columns.gpu_duration_ns.tolist() == [480] * 5
    assert columns.recorders == (("job-1", "node-1", 7),)
