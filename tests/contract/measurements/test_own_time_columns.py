"""Own times as columns: for every body none, or exactly what the full decoder returns."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.compiled import needs_codecs
from tests.support.otlp_strategies import own_times
from tests.support.own_times import as_measured, encode_reports, rank_push

from ingero.contract import names
from ingero.contract.measurements.own_time_columns import (
    MAX_BODY_BYTES,
    decode_own_time_columns,
)
from ingero.contract.measurements.ranks import RankReport, decode_ranks
from ingero.contract.otlp import limits
from ingero.contract.otlp.codec import decode_protobuf, encode_protobuf
from ingero.contract.otlp.values import (
    AnyValue,
    ArrayValue,
    Gauge,
    KeyValue,
    Metric,
    MetricsRequest,
    NumberPoint,
    Resource,
    ResourceMetrics,
    Scope,
    ScopeMetrics,
    Sum,
    any_value,
)
from ingero.contract.types import Identity
from ingero.errors import MalformedPush, TooLarge

identities = st.builds(
    Identity,
    node=st.sampled_from(["n0", "n1", "knoten-ä"]),
    cluster=st.just("train"),
    job=st.none() | st.just("job-1"),
    rank=st.none() | st.integers(0, 7),
)
reports = st.builds(
    RankReport, identities, st.lists(own_times, min_size=1, max_size=4).map(tuple), st.just(())
)

numbers = (
    st.integers(-(2**63), 2**63 - 1)
    | st.floats()
    | st.sampled_from([0, 1, -1, 7, 2**63 - 1, 1.5, 0.0, -0.0])
)
texts = st.sampled_from(["", "nccl-plugin", "ebpf", "abacus", "Größe", "12"])
keys = st.sampled_from(
    [
        names.STEP,
        names.STEP_COUNT,
        names.STEP_IDLE_MS,
        names.STEP_SPAN_MS,
        names.SOURCE,
        "other",
        "größe",
        "",
    ]
)
values = (
    st.none()
    | st.just(AnyValue())
    | (numbers | texts | st.booleans() | st.just(b"12")).map(any_value)
    | st.just(AnyValue(array_value=ArrayValue()))
)
points = st.builds(
    NumberPoint,
    attributes=st.lists(st.builds(KeyValue, keys, values), max_size=4).map(tuple),
    start_time_unix_nano=st.integers(0, 2**64 - 1),
    time_unix_nano=st.integers(0, 2**64 - 1),
    as_double=st.none() | st.floats(),
    flags=st.sampled_from([0, 0, 0, 1]),
) | st.builds(NumberPoint, as_int=st.integers(-(2**63), 2**63 - 1))
kinds = st.lists(points, max_size=3).map(tuple)
metrics = st.builds(
    Metric,
    name=st.sampled_from([names.STEP_OWN_TIME_MS] * 4 + [names.COLLECTIVE_DURATION_MS, "", "ä"]),
    unit=st.sampled_from(["ms", "µs", ""]),
    gauge=kinds.map(lambda found: Gauge(data_points=found)),
) | st.builds(Metric, st.just(names.STEP_OWN_TIME_MS), sum=kinds.map(Sum))
resources = st.builds(
    ResourceMetrics,
    resource=st.none()
    | st.just(Resource(attributes=(KeyValue(names.NODE_ID, any_value("n0")),)))
    | st.just(Resource()),
    scope_metrics=st.lists(
        st.builds(
            ScopeMetrics,
            scope=st.none() | st.sampled_from([Scope(), Scope("ingero.nccl", "1"), Scope("ä")]),
            metrics=st.lists(metrics, max_size=2).map(tuple),
            schema_url=st.sampled_from(["", "x"]),
        ),
        max_size=2,
    ).map(tuple),
    schema_url=st.sampled_from(["", "x"]),
)
requests = st.lists(resources, max_size=3).map(lambda found: MetricsRequest(tuple(found)))


def assert_twins_agree(body: bytes) -> bool:
    """Compare columns with the full decoder; return whether there are columns."""
    columns = decode_own_time_columns(body)
    if columns is None:
        return False
    try:
        request = decode_protobuf(MetricsRequest, body)
    except (MalformedPush, TooLarge):
        # Only a resource is left undecoded, and nothing is known about such a resource.
        with pytest.raises((MalformedPush, TooLarge)):
            as_measured(columns)
        return False
    measured = list(decode_ranks(request))
    assert repr(as_measured(columns)) == repr(measured)  # NaN != NaN
    assert repr(columns.last_span_ms) == repr([each.own_times[-1].span_ms for each in measured])
    return True


@needs_codecs
@given(st.lists(reports, min_size=1, max_size=3))
def test_what_agents_send_is_read_as_columns(sent: list[RankReport]) -> None:
    body = encode_reports(sent)
    is_plain = all(len({time.source for time in report.own_times}) == 1 for report in sent)
    assert assert_twins_agree(body) == is_plain


@given(requests)
def test_columns_hold_what_the_full_decoder_returns(request: MetricsRequest) -> None:
    assert_twins_agree(encode_protobuf(request))


# Points that differ in numbers alone, of which step 126 to 129 have one octet, then two.
alike = st.builds(
    rank_push, st.just(0), st.sampled_from([5, 126]), ranks=st.just(2), steps=st.just(4)
)


@given(alike | st.lists(reports, min_size=1, max_size=2).map(encode_reports), st.data())
def test_damaged_bodies_are_left_to_the_full_decoder(sent: bytes, data: st.DataObject) -> None:
    body = bytearray(sent)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, max(len(body) - 1, 0)))
        body[at : at + data.draw(st.integers(0, 2))] = data.draw(st.binary(max_size=2))
    assert_twins_agree(bytes(body))


@needs_codecs
def test_a_usual_push_of_eight_ranks_has_columns() -> None:
    columns = decode_own_time_columns(rank_push(3, 0))
    assert columns is not None
    assert (columns.counts, columns.sources) == ([10] * 8, [b"nccl-plugin"] * 8)
    assert columns.numbers[0].tolist() == list(range(10)) * 8
    assert columns.attributes(2)[names.RANK] == 26


@needs_codecs
def test_points_alike_are_read_with_their_own_numbers() -> None:
    steps = [0, 126, 127, 128, 16383, 16384, 2**30]
    bodies = [rank_push(0, step, ranks=2, steps=3) for step in steps]
    assert all(assert_twins_agree(body) for body in bodies)
    body = bodies[2]
    at = body.index(b"nccl-plugin", body.index(b"nccl-plugin") + 1)  # of the second point
    assert not assert_twins_agree(body[:at] + b"nccl-plugim" + body[at + 11 :])


@needs_codecs
def test_a_body_beyond_the_limit_is_left_to_the_full_decoder() -> None:
    body = rank_push(0, 0, ranks=8, steps=10) * 5
    assert len(body) > MAX_BODY_BYTES
    assert decode_own_time_columns(body) is None
    assert decode_own_time_columns(body[: len(body) // 5 * 4]) is not None


def test_no_body_with_columns_can_exceed_a_limit_of_requests() -> None:
    # A field takes two octets at least, and a message counts as two fields.
    assert MAX_BODY_BYTES <= limits.MAX_FIELDS
    assert MAX_BODY_BYTES <= limits.MAX_TEXT_BYTES


@needs_codecs
@pytest.mark.parametrize(
    "point",
    [
        NumberPoint(as_double=-1.0),
        NumberPoint(as_double=math.nan),
        NumberPoint(as_double=math.inf),
        NumberPoint(),
        NumberPoint(as_double=1.0, attributes=(KeyValue(names.STEP, any_value("7")),)),
        NumberPoint(as_double=1.0, attributes=(KeyValue(names.STEP, any_value(-1)),)),
        NumberPoint(as_double=1.0, attributes=(KeyValue(names.STEP_IDLE_MS, any_value(3)),)),
        NumberPoint(as_double=1.0, flags=1),
    ],
)
def test_points_that_must_be_judged_have_no_columns(point: NumberPoint) -> None:
    metric = Metric(names.STEP_OWN_TIME_MS, gauge=Gauge((point,)))
    each = ResourceMetrics(Resource(), (ScopeMetrics(metrics=(metric,)),))
    assert decode_own_time_columns(encode_protobuf(MetricsRequest((each,)))) is None
