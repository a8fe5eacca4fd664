import json

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.otlp_strategies import values

from ingero.contract.otlp import values as otlp
from ingero.contract.otlp.codec import decode_json, decode_protobuf, encode_json, encode_protobuf
from ingero.errors import MalformedPush

KINDS = [otlp.MetricsRequest, otlp.TracesRequest, otlp.LogsRequest]
modest = settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)


@pytest.mark.parametrize("kind", KINDS)
def test_round_trips_and_both_encodings_mean_the_same(kind: type) -> None:
    """F041: protobuf and JSON decode to the same values, which encode to the same bytes again."""

    @modest
    @given(values(kind))
    def check(request: otlp.Request) -> None:
        assert decode_protobuf(kind, encode_protobuf(request)) == request
        assert decode_json(kind, encode_json(request)) == request

    check()


PUSH = {
    "resourceMetrics": [
        {
            "resource": {
                "attributes": [{"key": "ingero.node.id", "value": {"stringValue": "a"}}],
                "novel": {"x": [1]},
            },
            "scopeMetrics": [{"metrics": [{"name": "m", "gauge": {"dataPoints": [{"asInt": 3}]}}]}],
        }
    ]
}


def point(**fields: object) -> otlp.NumberPoint:
    body = json.loads(json.dumps(PUSH))
    body["resourceMetrics"][0]["scopeMetrics"][0]["metrics"][0]["gauge"]["dataPoints"] = [fields]
    request = decode_json(otlp.MetricsRequest, json.dumps(body).encode())
    return request.resource_metrics[0].scope_metrics[0].metrics[0].numbers[0]


def test_integers_are_strings_or_numbers() -> None:
    assert (
        point(asInt=3, timeUnixNano="17")
        == point(asInt="3", timeUnixNano=17)
        == otlp.NumberPoint(as_int=3, time_unix_nano=17)
    )


def test_values_that_are_not_finite_arrive() -> None:
    assert point(asDouble="Infinity").as_double == float("inf")
    assert point(asDouble="-Infinity").as_double == float("-inf")
    nan = point(asDouble="NaN").as_double
    assert nan is not None and nan != nan
    encoded = encode_json(
        otlp.MetricsRequest(
            resource_metrics=(
                otlp.ResourceMetrics(
                    scope_metrics=(
                        otlp.ScopeMetrics(
                            metrics=(
                                otlp.Metric(
                                    gauge=otlp.Gauge(data_points=(otlp.NumberPoint(as_double=nan),))
                                ),
                            )
                        ),
                    )
                ),
            )
        )
    )
    assert b'"asDouble":"NaN"' in encoded


def test_null_means_absent_and_enum_names_are_understood() -> None:
    body = {
        "resourceMetrics": [
            {
                "resource": None,
                "scopeMetrics": [
                    {
                        "metrics": [
                            {
                                "name": "m",
                                "unit": None,
                                "sum": {
                                    "dataPoints": None,
                                    "aggregationTemporality": "AGGREGATION_TEMPORALITY_CUMULATIVE",
                                    "isMonotonic": True,
                                },
                            }
                        ]
                    }
                ],
            }
        ]
    }
    request = decode_json(otlp.MetricsRequest, json.dumps(body).encode())
    assert request.resource_metrics[0].scope_metrics[0].metrics == (
        otlp.Metric(name="m", sum=otlp.Sum(aggregation_temporality=2, is_monotonic=True)),
    )


def test_ids_are_hex_of_any_case_and_become_bytes() -> None:
    span = {
        "traceId": "0AF7651916CD43DD8448EB211C80319C",
        "spanId": "b7ad6b7169203331",
        "name": "infer.outlier.3x",
    }
    body = json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}).encode()
    request = decode_json(otlp.TracesRequest, body)
    assert (
        request.resource_spans[0].scope_spans[0].spans[0].trace_id
        == "0af7651916cd43dd8448eb211c80319c"
    )
    assert bytes.fromhex("0af7651916cd43dd8448eb211c80319c") in encode_protobuf(request)


def one_point(fields: bytes) -> bytes:
    gauge = b'{"gauge": {"dataPoints": [{%b}]}}' % fields
    return b'{"resourceMetrics": [{"scopeMetrics": [{"metrics": [%b]}]}]}' % gauge


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{",
        b'{"resourceMetrics": 3}',
        one_point(b'"asDouble": NaN'),
        one_point(b'"asDouble": 1e400'),
        one_point(b'"asInt": "1_0"'),
        one_point(b'"timeUnixNano": -1'),
        b'{"resourceMetrics": "\xff"}',
    ],
)
def test_malformed_json_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedPush):
        decode_json(otlp.MetricsRequest, body)


@pytest.mark.parametrize("text", ["abc", "0g", "YWJjZGVmZ2g="])
def test_ids_that_are_no_octets_in_hex_are_refused(text: str) -> None:
    body = b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"traceId":"%b"}]}]}]}' % text.encode()
    with pytest.raises(MalformedPush):
        decode_json(otlp.TracesRequest, body)


@given(st.binary(max_size=64))
def test_any_bytes_decode_or_are_refused(body: bytes) -> None:
    for kind in KINDS:
        for decode in (decode_json, decode_protobuf):
            try:
                decode(kind, body)
            except MalformedPush:
                continue


def test_items_are_counted_as_otlp_counts_them() -> None:
    assert otlp.count_items(decode_json(otlp.MetricsRequest, json.dumps(PUSH).encode())) == 1
    spans = otlp.TracesRequest(
        resource_spans=(
            otlp.ResourceSpans(scope_spans=(otlp.ScopeSpans(spans=(otlp.Span(), otlp.Span())),)),
        )
    )
    assert otlp.count_items(spans) == 2


def test_attributes_become_plain_values_and_back() -> None:
    plain = {"s": "x", "b": True, "i": 3, "f": 0.5, "y": b"\0", "l": [1, "a"], "d": {"k": None}}
    assert otlp.plain_attributes(otlp.attributes(plain)) == plain
