import json
import math

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.compiled import needs_codecs
from tests.support.otlp_strategies import values
from tests.support.shared_data import shared

from ingero.contract import names
from ingero.contract.otlp import values as otlp
from ingero.contract.otlp.codec import decode_json, decode_protobuf, encode_json, encode_protobuf
from ingero.contract.push.decode import (
    NodeReport,
    Push,
    Reject,
    decode_plain_push,
    decode_push,
)
from ingero.errors import MalformedPush


def decode_plainly(body: bytes, is_json: bool) -> Push | None:
    """Return what `decode_plain_push` found in the shape of `decode_push`."""
    found = decode_plain_push(body, is_json)
    return None if found is None else Push((found[0],), False, (), found[1])


def push(metrics: list[otlp.Metric], **resource: otlp.Plain) -> otlp.MetricsRequest:
    identity = {names.NODE_ID: "gpu-01", names.CLUSTER_ID: "train", **resource}
    return otlp.MetricsRequest(
        resource_metrics=(
            otlp.ResourceMetrics(
                resource=otlp.Resource(
                    attributes=otlp.attributes({k: v for k, v in identity.items() if v is not None})
                ),
                scope_metrics=(otlp.ScopeMetrics(metrics=tuple(metrics)),),
            ),
        )
    )


def gauge(name: str, value: float, sent_ns: int = 7, **attributes: otlp.Plain) -> otlp.Metric:
    number = {"as_int": value} if isinstance(value, int) else {"as_double": value}
    point = otlp.NumberPoint(
        attributes=otlp.attributes(attributes), time_unix_nano=sent_ns, **number
    )
    return otlp.Metric(name=name, unit="1", gauge=otlp.Gauge(data_points=(point,)))


def score(value: float, state: str = "active", workload: str = "training") -> otlp.Metric:
    return gauge(
        names.HEALTH_SCORE, value, **{names.NODE_STATE: state, names.WORKLOAD_TYPE: workload}
    )


FULL = push(
    [
        score(0.92),
        gauge(names.THROUGHPUT_RATIO, 0.9),
        gauge(names.DEGRADATION_WARNING, 1),
        gauge(names.AGENT_DETECTION_MODE, 1, **{names.DETECTION_MODE: "fleet"}),
        gauge(names.AGENT_LOST_RECORDS, 3, **{names.AGENT_VERSION: "1.2.3"}),
        gauge(names.AGENT_READY_S, 40),
        gauge(names.NODE_INFO, 1, **{names.GPU_MODEL: "NVIDIA H200", names.GPU_COUNT: 8}),
    ],
    **{names.JOB_ID: "job-7", names.NODE_RANK: 3, names.WORLD_SIZE: 8, names.PROVIDER: "aws"},
)


def test_everything_fleet_shows_about_a_node_is_read() -> None:
    assert decode_push(FULL) == Push(
        (
            NodeReport(
                "gpu-01", "train", "job-7", 3, 8, "aws", 0.92, "active", "training", "fleet",
                True, None,
                "NVIDIA H200", 8, 7, "1.2.3", 3, 40,
            ),
        ),
        False,
        (),
        names.HEALTH_SCORE,
    )  # fmt: skip


@needs_codecs
def test_compiled_and_pure_path_agree_on_the_common_push() -> None:
    assert decode_plainly(encode_protobuf(FULL), False) == decode_push(FULL)
    assert decode_plainly(encode_json(FULL), True) == decode_push(FULL)
    spaced = json.dumps(json.loads(encode_json(FULL)), indent=1).encode()
    assert decode_plainly(spaced, True) == decode_push(FULL)


@pytest.mark.parametrize(
    ("request_", "reason"),
    [
        (push([score(math.nan)]), Reject.SCORE_NOT_FINITE),
        (push([score(math.inf)]), Reject.SCORE_NOT_FINITE),
        (push([score(1.01)]), Reject.SCORE_OUT_OF_RANGE),
        (push([score(-0.01)]), Reject.SCORE_OUT_OF_RANGE),
        (push([score(0.9, state="asleep")]), Reject.STATE_UNKNOWN),
        (push([score(0.9)], **{names.NODE_ID: None}), Reject.NODE_ID_MISSING),
        (push([score(0.9)], **{names.NODE_ID: "a\r\nX-Evil: 1"}), Reject.IDENTITY_INVALID),
        (push([score(0.9)], **{names.CLUSTER_ID: "a\nb"}), Reject.IDENTITY_INVALID),
        (push([score(0.9)], **{names.NODE_ID: "x" * 254}), Reject.IDENTITY_INVALID),
    ],
)
def test_points_that_cannot_be_true_are_refused_by_reason(
    request_: otlp.MetricsRequest, reason: Reject
) -> None:
    found = decode_push(request_)
    assert found.rejected == ((reason, 1),)
    assert [report.score for report in found.reports] in ([], [None])
    assert decode_plain_push(encode_protobuf(request_), False) is None, (
        "refusals are left to the full decoder"
    )
    assert decode_plain_push(encode_json(request_), True) is None


def test_a_push_of_another_sender_is_not_refused() -> None:
    foreign = push(
        [gauge("system.cpu.utilization", 0.4)], **{names.NODE_ID: None, names.CLUSTER_ID: None}
    )
    assert decode_push(foreign) == Push((), False, (), "system.cpu.utilization")


def test_measurements_are_noticed_and_left_to_the_full_decoder() -> None:
    collective = push([score(0.9), gauge(names.COLLECTIVE_DURATION_MS, 1.5)])
    assert decode_push(collective).has_measurements
    assert decode_plain_push(encode_protobuf(collective), False) is None
    assert decode_plain_push(encode_json(collective), True) is None


def test_straggler_event_is_read() -> None:
    event = push(
        [gauge(names.STRAGGLER_EVENT, 1, **{names.SCORE_ATTR: 0.4, names.THRESHOLD_ATTR: 0.87})]
    )
    assert decode_push(event).reports[0].straggling is True


@needs_codecs
def test_pushes_of_the_reference_agent_are_plain() -> None:
    lines = (shared("data/ingero-wire") / "requests.jsonl").read_text().splitlines()
    bodies = [
        json.loads(line)["body"]
        for line in lines
        if json.loads(line)["path"].startswith("/v1/metrics")
    ]
    requests = [decode_json(otlp.MetricsRequest, json.dumps(body).encode()) for body in bodies]
    events = sum(names.STRAGGLER_EVENT in json.dumps(body) for body in bodies)
    for plain in (
        [decode_plainly(encode_protobuf(request), False) for request in requests],
        [decode_plainly(json.dumps(body).encode(), True) for body in bodies],
    ):
        assert [found for found in plain if found is not None] == [
            decode_push(request)
            for request, found in zip(requests, plain, strict=True)
            if found is not None
        ]
        assert plain.count(None) == events


texts = st.sampled_from(["active", "idle", "", "a", "ü", "a\nb", " a", "fleet"])
keys = st.sampled_from(
    [
        names.NODE_ID, names.CLUSTER_ID, names.JOB_ID, names.RANK, names.NODE_RANK,
        names.AGENT_VERSION,
        names.WORLD_SIZE, names.NODE_STATE,
        names.WORKLOAD_TYPE, names.DETECTION_MODE, "mode", names.GPU_MODEL, names.GPU_COUNT,
        "other",
    ]
)  # fmt: skip
pairs = st.builds(
    otlp.KeyValue,
    key=keys,
    value=st.none()
    | st.one_of(texts, st.integers(-5, 5), st.floats(), st.booleans()).map(otlp.any_value),
)
points = st.builds(
    otlp.NumberPoint,
    attributes=st.lists(pairs, max_size=3).map(tuple),
    time_unix_nano=st.integers(0, 9),
    as_double=st.floats(0, 1) | st.sampled_from([2.0, -1.0, math.inf]),
) | st.builds(otlp.NumberPoint, as_int=st.integers(-1, 2))
metrics = st.builds(
    otlp.Metric,
    name=st.sampled_from(
        [
            names.HEALTH_SCORE, names.AGENT_DETECTION_MODE, names.DEGRADATION_WARNING,
            names.NODE_INFO, names.AGENT_LOST_RECORDS, names.AGENT_READY_S,
            names.STRAGGLER_EVENT, names.COLLECTIVE_DURATION_MS, names.STEP_OWN_TIME_MS, "other",
        ]
    ),
    gauge=st.lists(points, max_size=2).map(lambda found: otlp.Gauge(data_points=tuple(found))),
)  # fmt: skip
requests = st.builds(
    lambda attributes, found: otlp.MetricsRequest(
        resource_metrics=(
            otlp.ResourceMetrics(
                resource=otlp.Resource(attributes=tuple(attributes)),
                scope_metrics=(otlp.ScopeMetrics(metrics=tuple(found)),),
            ),
        )
    ),
    st.lists(pairs, max_size=4),
    st.lists(metrics, max_size=3),
)
modest = settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))


@modest
@given(requests | values(otlp.MetricsRequest))
def test_plain_decoding_gives_the_same_report_or_none(request_: otlp.MetricsRequest) -> None:
    body = encode_protobuf(request_)
    expected = decode_push(decode_protobuf(otlp.MetricsRequest, body))
    for plain in (decode_plainly(body, False), decode_plainly(encode_json(request_), True)):
        assert plain is None or plain == expected


JSON_BYTES = b'{}[],:"0123456789.-+eE \\/truefalsn\n\x00\xff'


@pytest.mark.parametrize("is_json", [False, True])
@modest
@given(requests, st.data())
def test_plain_decoding_never_accepts_what_the_decoder_refuses(
    is_json: bool, request_: otlp.MetricsRequest, data: st.DataObject
) -> None:
    encode, decode = (encode_json, decode_json) if is_json else (encode_protobuf, decode_protobuf)
    body = bytearray(encode(data.draw(st.sampled_from([request_, FULL]))) or b"\n\0")
    octets = st.sampled_from(list(JSON_BYTES)) if is_json else st.integers(0, 255)
    for _ in range(data.draw(st.integers(1, 3))):
        at = data.draw(st.integers(0, len(body) - 1))
        if data.draw(st.booleans()):
            body[at] = data.draw(octets)
        else:
            del body[at : at + data.draw(st.integers(1, 4))]
            body = body or bytearray(b"{")
    plain = decode_plainly(bytes(body), is_json)
    if plain is not None:
        try:
            decoded = decode(otlp.MetricsRequest, bytes(body))
        except MalformedPush:
            pytest.fail(f"accepted what is not OTLP: {bytes(body)!r}")
        assert repr(plain) == repr(decode_push(decoded))


@modest
@given(requests)
def test_json_gives_the_same_reports(request_: otlp.MetricsRequest) -> None:
    assert repr(decode_push(decode_json(otlp.MetricsRequest, encode_json(request_)))) == repr(
        decode_push(request_)
    )


@pytest.mark.parametrize(
    "number", ["1e999", "-1e999", "1e308", "123456789012345678901234567890", "1e-999"]
)
@pytest.mark.parametrize("place", ["asDouble", "doubleValue"])
def test_numbers_beyond_a_double_are_left_to_the_decoder(number: str, place: str) -> None:
    """Plain decoding once raised an error for them."""
    body = encode_json(push([gauge(names.HEALTH_SCORE, 0.5, **{names.THRESHOLD_ATTR: 0.25})]))
    text = body.decode().replace(
        '"asDouble":0.5' if place == "asDouble" else '"doubleValue":0.25', f'"{place}":{number}'
    )
    assert number in text
    plain = decode_plainly(text.encode(), True)
    assert plain is None or plain == decode_push(decode_json(otlp.MetricsRequest, text.encode()))


@needs_codecs
@pytest.mark.parametrize("size", range(1, 20))
def test_one_octet_outside_plain_text_is_found_wherever_it_is(size: int) -> None:
    """Compiled code checks eight octets at once and must not miss an unusual one."""
    plain = otlp.Metric(name=names.HEALTH_SCORE, description=" ~" * 10)
    for text in (" " * size, "~" * size):
        assert (
            decode_plain_push(
                encode_protobuf(push([score(0.9), plain, gauge("x" + text, 1)])), False
            )
            is not None
        )
        for at in range(size):
            for odd in ("\x00", "\x1f", "\x7f", "\x80", "é"):
                name = text[:at] + odd + text[at + 1 :]
                assert (
                    decode_plain_push(encode_protobuf(push([score(0.9), gauge(name, 1)])), False)
                    is None
                )
