"""What an agent pushes: the recorded shape, counters, and no points for missing values."""

import json
from typing import Any

import pytest
from tests.support.recorded_wire import is_event, recorded, shape

from ingero.contract import names
from ingero.contract.otlp.codec import decode_json, decode_protobuf, encode_json, encode_protobuf
from ingero.contract.otlp.values import MetricsRequest
from ingero.contract.push.decode import decode_push
from ingero.contract.push.encode import (
    CgroupTotals,
    HealthReport,
    StragglerEvent,
    encode_health,
    encode_straggler_event,
)
from ingero.contract.types import DetectionMode, Identity, NodeState

IDENTITY = Identity(node="gpu-node-01", cluster="train-a", world_size=8, rank=3)


def report(**changes: Any) -> HealthReport:
    values: dict[str, Any] = {
        "at_ns": 1_794_709_942_103_534_806, "state": NodeState.ACTIVE, "workload": "training",
        "cgroup_hash": "8a5edab282632443", "score": 0.94, "is_degraded": False,
        "mode": DetectionMode.FLEET,
        "signals": {"throughput": 1.0, "compute": 0.9, "memory": 0.9, "cpu": 0.9},
        "fleet_reachable": True,
    }  # fmt: skip
    return HealthReport(**(values | changes))


def metrics(request: MetricsRequest) -> dict[str, Any]:
    return {metric.name: metric for metric in request.resource_metrics[0].scope_metrics[0].metrics}


def test_regular_push_has_the_recorded_shape_key_by_key() -> None:
    ours = shape(json.loads(encode_json(encode_health(IDENTITY, report()))))
    pushes = [body for body in recorded() if not is_event(body)]
    assert len(pushes) > 30
    for body in pushes:
        assert list(map(str, [ours])) == list(map(str, [shape(body)]))


def test_straggler_event_has_the_recorded_shape_key_by_key() -> None:
    event = StragglerEvent(
        at_ns=1, is_straggler=True, mode=DetectionMode.FLEET, threshold=0.985, score=0.94,
        dominant_signal="throughput",
        event_id="5a6d19f8-77ee-4125-8e99-1b3d49e8e730",
    )  # fmt: skip
    ours = shape(json.loads(encode_json(encode_straggler_event(IDENTITY, event))))
    events = [body for body in recorded() if is_event(body)]
    assert len(events) == 6
    for body in events:
        assert str(ours) == str(shape(body))


@pytest.mark.parametrize("encode", [encode_json, encode_protobuf])
def test_fleet_reads_back_what_we_send(encode: Any) -> None:
    body = encode(encode_health(IDENTITY, report(gpu_model="NVIDIA H200", gpu_count=8)))
    request = (decode_json if encode is encode_json else decode_protobuf)(MetricsRequest, body)
    [found] = decode_push(request).reports
    assert (found.node, found.cluster, found.rank, found.world_size) == (
        "gpu-node-01",
        "train-a",
        3,
        8,
    )
    assert (found.score, found.state, found.workload, found.mode) == (
        0.94,
        "active",
        "training",
        "fleet",
    )
    assert (found.gpu_model, found.gpu_count) == ("NVIDIA H200", 8)


def test_missing_score_and_signals_are_left_out_not_zero() -> None:
    sent = metrics(
        encode_health(IDENTITY, report(score=None, signals={"cpu": 0.5, "memory": None}))
    )
    assert names.HEALTH_SCORE not in sent
    assert names.MEMORY_HEADROOM not in sent
    assert names.CPU_AVAILABILITY in sent


def test_node_info_only_with_model_and_count_and_world_size_always() -> None:
    sent = metrics(encode_health(Identity(node="n"), report(gpu_model="NVIDIA H200")))
    assert names.NODE_INFO not in sent
    assert sent[names.NODE_WORLD_SIZE].gauge.data_points[0].as_int == 0


def test_counters_are_cumulative_sums_with_a_start_and_their_units() -> None:
    totals = (
        CgroupTotals(
            cgroup_hash="h", launches=15, stall_ns=7, memcpy_bytes={"h2d": 5, "unknown": 2}
        ),
    )
    sent = metrics(encode_health(IDENTITY, report(totals=totals, totals_since_ns=9)))
    found = {
        name: (sent[name].unit, sent[name].sum.aggregation_temporality, sent[name].sum.is_monotonic)
        for name in (
            names.KERNEL_LAUNCH_TOTAL,
            names.CPU_STALL_NANOS_TOTAL,
            names.MEMCPY_BYTES_TOTAL,
        )
    }
    assert found == {
        names.KERNEL_LAUNCH_TOTAL: ("1", 2, True),
        names.CPU_STALL_NANOS_TOTAL: ("ns", 2, True),
        names.MEMCPY_BYTES_TOTAL: ("By", 2, True),
    }
    points = sent[names.MEMCPY_BYTES_TOTAL].sum.data_points
    assert [(point.as_int, point.start_time_unix_nano) for point in points] == [(5, 9), (2, 9)]


def test_no_cgroups_no_counter_families() -> None:
    sent = metrics(encode_health(IDENTITY, report()))
    assert not {
        names.KERNEL_LAUNCH_TOTAL,
        names.CPU_STALL_NANOS_TOTAL,
        names.MEMCPY_BYTES_TOTAL,
    } & set(sent)
