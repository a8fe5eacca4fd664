"""Reports of engines survive the wire, and what makes no sense is left out."""

from dataclasses import fields

from hypothesis import given
from hypothesis.strategies import (
    booleans,
    builds,
    floats,
    integers,
    none,
    one_of,
    sampled_from,
    text,
)

from ingero.contract import names
from ingero.contract.measurements.engines import (
    REPORTED,
    EngineId,
    EngineKind,
    EngineReport,
    decode_engines,
    encode_engine,
)
from ingero.contract.measurements.ranks import split_measurements
from ingero.contract.otlp.codec import decode_protobuf, encode_protobuf
from ingero.contract.otlp.values import MetricsRequest
from ingero.contract.push.decode import decode_push
from ingero.contract.types import Identity

IDENTITY = Identity(node="n1", cluster="c1", gpu_model="NVIDIA L4", provider="gcp")
ENGINES = builds(
    EngineId,
    kind=sampled_from(EngineKind),
    model=text("abc/-", max_size=20),
    port=integers(1, 65535),
    pid=integers(1, 4_000_000),
    rank=one_of(none(), integers(0, 63)),
    gpus=integers(0, 16),
)
NUMBERS = one_of(none(), floats(0, 1e9))
REPORTS = builds(
    EngineReport,
    is_up=booleans(),
    stalled_s=none(),
    **dict.fromkeys(REPORTED, NUMBERS),
)


def request(engine: EngineId, report: EngineReport) -> MetricsRequest:
    return MetricsRequest((encode_engine(IDENTITY, engine, report, 5),))


@given(ENGINES, REPORTS)
def test_a_report_survives_the_wire(engine: EngineId, report: EngineReport) -> None:
    body = encode_protobuf(request(engine, report))
    (found,) = decode_engines(decode_protobuf(MetricsRequest, body))
    assert (found.engine, found.report) == (engine, report)
    assert found.resource[names.NODE_ID] == "n1"


def test_a_stall_carries_where_the_workers_wait() -> None:
    engine = EngineId(kind=EngineKind.VLLM, model="m", port=1, pid=2)
    report = EngineReport(stalled_s=6.5, waits="worker\x1b waits" + "." * 600, health=200)
    (found,) = decode_engines(request(engine, report))
    assert found.report.stalled_s == 6.5
    assert found.report.health == 200
    assert found.report.waits.startswith("worker waits")
    assert len(found.report.waits) <= 480


def test_every_field_has_a_name_on_the_wire() -> None:
    own = {"is_up", "stalled_s", "waits", "health"}
    assert {field.name for field in fields(EngineReport)} - own == set(names.ENGINE_METRICS)


def test_fleet_recognises_the_push_and_keeps_it_whole_when_it_is_large() -> None:
    engine = EngineId(kind=EngineKind.TGI, model="m", port=1, pid=2)
    body = request(engine, EngineReport(running=1.0, stalled_s=1.0))
    assert decode_push(body).has_measurements
    found = [each for part in split_measurements(body, 1) for each in decode_engines(part)]
    assert [each.report.running for each in found] == [1.0]


def test_an_unknown_kind_is_left_out() -> None:
    engine = EngineId(kind=EngineKind.TGI, model="m", port=1, pid=2)
    whole = request(engine, EngineReport())
    body = encode_protobuf(whole).replace(b"\x03tgi", b"\x03xyz")
    assert list(decode_engines(decode_protobuf(MetricsRequest, body))) == []
