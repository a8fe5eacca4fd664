"""Collective records over OTLP: one point per record, unknown fields left out, bounded requests."""

from dataclasses import replace

from ingero.contract import names
from ingero.contract.collective import CollectiveRecord, CollectiveSource
from ingero.contract.measurements.collectives import (
    POINTS_PER_REQUEST,
    encode_batches,
    encode_collectives,
)
from ingero.contract.otlp.values import plain_attributes


def _record(rank: int, seq: int, gpu_duration_ns: int | None = None) -> CollectiveRecord:
    return CollectiveRecord(
        job=None, node=None, global_rank=rank, comm=0xAB, seq=seq, op="AllReduce", rank=rank,
        nranks=2, peer=None,
        datatype="bfloat16", reduce_op=None, size_bytes=64, start_ns=1_000_000, end_ns=3_500_000,
        gpu_duration_ns=gpu_duration_ns, stream=None, source=CollectiveSource.PLUGIN,
    )  # fmt: skip


def test_a_record_is_one_point_from_entry_to_exit() -> None:
    request = encode_collectives([_record(1, 7, 2_000_000)], "prod", "n1")
    (resource,) = request.resource_metrics
    assert resource.resource is not None
    identity = {names.NODE_ID: "n1", names.CLUSTER_ID: "prod", names.RANK: 1}
    assert plain_attributes(resource.resource.attributes) == identity
    (metric,) = resource.scope_metrics[0].metrics
    (point,) = metric.numbers
    assert (metric.name, point.as_double) == (names.COLLECTIVE_DURATION_MS, 2.5)
    assert (point.start_time_unix_nano, point.time_unix_nano) == (1_000_000, 3_500_000)
    assert plain_attributes(point.attributes) == {
        names.NCCL_OP: "AllReduce", names.NCCL_COMM: "00000000000000ab", names.NCCL_RANK: 1,
        names.NCCL_NRANKS: 2,
        names.NCCL_DATATYPE: "bfloat16", names.NCCL_SEQ: 7, names.NCCL_BYTES: 64,
        names.NCCL_GPU_DURATION_NS: 2_000_000, names.SOURCE: "nccl-plugin",
    }  # fmt: skip


def test_each_rank_is_a_resource_and_requests_are_bounded() -> None:
    records = [_record(seq % 2, seq) for seq in range(POINTS_PER_REQUEST + 5)]
    (first, first_points), (second, second_points) = encode_batches(records, "c", "n")
    assert (first_points, second_points) == (POINTS_PER_REQUEST, 5)
    assert len(first.resource_metrics) == len(second.resource_metrics) == 2


def test_waits_are_points_of_their_own_marked_by_a_flag_must_42() -> None:
    waited = replace(_record(1, 8), barrier_wait_ns=1_500_000)
    ((resource),) = encode_collectives([_record(1, 7), waited], "prod", "n1").resource_metrics
    durations, waits = resource.scope_metrics[0].metrics
    assert (durations.name, len(durations.numbers)) == (names.COLLECTIVE_DURATION_MS, 2)
    (point,) = waits.numbers
    assert (waits.name, waits.unit, point.as_double) == (
        names.COLLECTIVE_BARRIER_WAIT_MS,
        "ms",
        1.5,
    )
    plain, flagged = (
        plain_attributes(durations.numbers[1].attributes),
        plain_attributes(point.attributes),
    )
    assert flagged == plain | {names.NCCL_BARRIER: True}, "the operation keeps its name"
    assert point.time_unix_nano == durations.numbers[1].time_unix_nano, (
        "both are about one collective"
    )
