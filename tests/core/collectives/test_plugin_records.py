"""Plugin records as collectives: names, sizes and the offset between the two clocks."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ingero.contract.nccl_ring import FLAG_GPU_TIMED, KIND_COLLECTIVE, KIND_P2P, RECORD
from ingero.core.collectives.columns import Recorder
from ingero.core.collectives.plugin_records import SAME_CLOCK, fit_gpu_clock, to_collectives

US = 1_000
EPOCH = 1_790_000_000_000_000_000


def records(rows):
    array = np.zeros(len(rows), RECORD)
    for index, row in enumerate(rows):
        for name, value in {
            "kind": KIND_COLLECTIVE,
            "op": b"AllReduce",
            "datatype": b"Float32",
        }.items():
            array[index][name] = row.get(name, value)
        for name, value in row.items():
            array[index][name] = value
    return array


def test_names_and_sizes_are_the_contracts():
    rows = records(
        [
            {"op": b"Broadcast", "datatype": b"Bfloat16", "count": 10, "peer": 3},
            {"op": b"AllReduce", "datatype": b"Float8e5m2", "count": 10, "peer": 3},
            {"op": b"Send", "kind": KIND_P2P, "count": 10, "peer": 2, "seq": 9},
            {"op": b"NewThing", "datatype": b"Float4", "count": 10},
        ]
    )
    columns = to_collectives(rows, Recorder(None, "n", None), SAME_CLOCK)
    assert [columns.ops[code] for code in columns.op] == [
        "Broadcast",
        "AllReduce",
        "Send",
        "NewThing",
    ]
    assert columns.size_bytes.tolist() == [20, 10, 40, -1]
    assert columns.peer.tolist() == [3, -1, 2, -1]
    assert columns.seq.tolist() == [0, 0, -1, 0]
    assert columns.gpu_duration_ns.tolist() == [-1] * 4


def test_no_records_are_no_rows():
    assert len(to_collectives(records([]), Recorder(None, None, None), SAME_CLOCK)) == 0
    assert fit_gpu_clock(records([])) is None
    assert fit_gpu_clock(records([{"count": 1}])) is None


@given(
    offset=st.integers(-(10**15), 10**15),
    delays=st.lists(
        st.tuples(st.integers(1, 10**6), st.integers(1, 10**9), st.integers(1, 10**6)),
        min_size=1,
        max_size=50,
    ),
)
def test_the_true_offset_lies_within_the_error(offset, delays):
    rows = []
    for index, (queued, ran, heard) in enumerate(delays):
        at = EPOCH + index * 10**10
        rows.append(
            {
                "enqueue_ns": at,
                "gpu_start_ns": at + queued - offset,
                "gpu_stop_ns": at + queued + ran - offset,
                "host_stop_ns": at + queued + ran + heard,
                "flags": FLAG_GPU_TIMED,
            }
        )
    clock = fit_gpu_clock(records(rows))
    assert abs(clock.offset_ns - offset) <= clock.error_ns + 1
    columns = to_collectives(records(rows), Recorder(None, None, 1), clock)
    assert columns.gpu_duration_ns.tolist() == [ran for _, ran, _ in delays]
    assert (columns.end_ns >= columns.start_ns).all()
    assert (
        np.abs(columns.end_ns - [EPOCH + i * 10**10 + q + r for i, (q, r, _) in enumerate(delays)])
        <= clock.error_ns + 1
    ).all()


def test_a_queue_that_is_always_deep_does_not_loosen_the_clock():
    """Work is enqueued 250 ms ahead; the offset is still exact to some microseconds."""
    rows = [
        {
            "enqueue_ns": EPOCH + at,
            "gpu_start_ns": 7 + at + 250_000_000,
            "gpu_stop_ns": 7 + at + 251_000_000,
            "host_stop_ns": EPOCH + at + 251_000_000 + heard,
            "flags": FLAG_GPU_TIMED,
        }
        for at, heard in ((0, 900_000), (10**9, 30_000), (2 * 10**9, 80_000))
    ]
    clock = fit_gpu_clock(records(rows))
    assert abs(clock.offset_ns - (EPOCH - 7)) <= 20_000
    assert clock.error_ns > 200_000_000  # the bound from causality alone


def test_sends_that_carry_the_times_of_the_group_before_do_not_move_the_clock():
    """They seem to start 100 ms before they were enqueued; alone, they are all there is."""
    good = {
        "enqueue_ns": EPOCH,
        "gpu_start_ns": 7 + 40_000,
        "gpu_stop_ns": 7 + 90_000,
        "host_stop_ns": EPOCH + 130_000,
        "flags": FLAG_GPU_TIMED,
    }
    stale = {**good, "kind": KIND_P2P, "op": b"Send", "enqueue_ns": EPOCH + 100_000_000}
    assert fit_gpu_clock(records([good, stale])) == fit_gpu_clock(records([good]))
    assert fit_gpu_clock(records([{**good, "kind": KIND_P2P}])) == fit_gpu_clock(records([good]))


def test_times_of_an_older_operation_are_no_times():
    """NCCL reports them where a kernel sends to and receives from the same rank."""
    offset, rows = 700 * US, []
    for number in range(20):
        enqueue = EPOCH + number * 10_000 * US
        start = enqueue + 300 * US - offset
        times = {"enqueue_ns": enqueue, "flags": FLAG_GPU_TIMED}
        ran = {
            "gpu_start_ns": start,
            "gpu_stop_ns": start + US,
            "host_stop_ns": start + offset + 60 * US,
        }
        rows.append(times | ran)
        old = {"gpu_start_ns": start - 64_000 * US, "gpu_stop_ns": start - 63_999 * US}
        rows.append(
            times | old | {"kind": KIND_P2P, "op": b"Send", "host_stop_ns": enqueue + 9 * US}
        )
    clock = fit_gpu_clock(records(rows))
    assert abs(clock.offset_ns - offset) <= 60 * US
    columns = to_collectives(records(rows), Recorder(None, "n", None), clock)
    assert columns.is_gpu_timed.tolist() == [True, False] * 20
    assert (columns.end_ns >= columns.start_ns).all()
