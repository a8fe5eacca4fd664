"""Signals, asks and findings cross the wire and come back; what makes no sense is left out."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingero.contract import names
from ingero.contract.causes import (
    MAX_ASK_BYTES,
    MAX_TEXT,
    Ask,
    CauseKind,
    Finding,
    PeerValue,
    Signal,
    decode_asks,
    decode_signals,
    encode_asks,
    encode_findings,
    encode_signals,
)
from ingero.contract.otlp.codec import decode_protobuf, encode_protobuf
from ingero.contract.otlp.values import (
    Gauge,
    Metric,
    MetricsRequest,
    NumberPoint,
    ResourceMetrics,
    ScopeMetrics,
    attributes,
)
from ingero.contract.push.decode import decode_plain_push, decode_push
from ingero.contract.types import Identity

WHO = Identity(node="n1", cluster="c", job="j", rank=3)
numbers = st.floats(0, 1e6, allow_nan=False)


def over_the_wire(*resources: ResourceMetrics) -> MetricsRequest:
    return decode_protobuf(MetricsRequest, encode_protobuf(MetricsRequest(resources)))


@given(st.dictionaries(st.sampled_from(Signal), numbers, min_size=1))
def test_signals_come_back(signals: dict[Signal, float]) -> None:
    (found,) = decode_signals(over_the_wire(encode_signals(WHO, signals, 7)))
    assert found.signals == signals
    assert found.resource[names.NODE_ID] == "n1"
    assert found.resource[names.RANK] == 3


@pytest.mark.parametrize("explains", [None, 0.0, 0.61, 1.0])
def test_findings_come_back(explains: float | None) -> None:
    finding = Finding(
        episode="e", number=2, kind=CauseKind.GC, text="garbage collection", explains=explains
    )
    (found,) = decode_signals(over_the_wire(encode_findings(WHO, [finding], 7)))
    assert found.findings == (finding,)


def test_text_of_a_finding_is_cut_and_cleaned() -> None:
    finding = Finding(episode="e", number=1, kind=CauseKind.GC, text="a\x1b[31m\n" + "b" * 500)
    (found,) = decode_signals(over_the_wire(encode_findings(WHO, [finding], 7)))
    assert found.findings[0].text == ("a[31m" + "b" * 500)[:MAX_TEXT]


def point(value: float, **values: str | int) -> NumberPoint:
    return NumberPoint(attributes=attributes(dict(values)), as_double=value)


def test_points_that_make_no_sense_are_left_out() -> None:
    signals = (
        NumberPoint(attributes=attributes({names.SIGNAL: "unheard_of"}), as_double=1.0),
        NumberPoint(attributes=attributes({names.SIGNAL: "sm_clock"}), as_double=float("nan")),
        NumberPoint(attributes=attributes({names.SIGNAL: "power"}), as_double=300.0),
    )
    findings = (point(0.5), point(0.5, **{names.EPISODE_ID: "e"}))
    metrics = (
        Metric(name=names.RANK_SIGNAL, gauge=Gauge(data_points=signals)),
        Metric(name=names.RANK_CAUSE, gauge=Gauge(data_points=findings)),
    )
    resource = ResourceMetrics(scope_metrics=(ScopeMetrics(metrics=metrics),))
    (found,) = decode_signals(MetricsRequest((resource,)))
    assert (found.signals, found.findings) == ({Signal.POWER: 300.0}, ())


@given(
    st.builds(
        Ask,
        episode=st.text("0123456789abcdef", min_size=1, max_size=16),
        number=st.integers(1, 9),
        job=st.none() | st.text(max_size=20),
        rank=st.none() | st.integers(0, 10**6),
        cause_class=st.sampled_from(["host", "compute", "unknown"]),
        late=st.none() | st.floats(0, 1),
        step_ms=st.none() | st.floats(0.1, 1e6),
        peers=st.dictionaries(
            st.sampled_from([str(each) for each in Signal]),
            st.builds(PeerValue, numbers, numbers, st.integers(1, 512)),
        ),
    )
)
def test_asks_come_back_as_ascii(ask: Ask) -> None:
    text = encode_asks([ask])
    if not text:  # a name of many unusual characters may not fit
        assert len(msgspec.json.encode(ask)) > MAX_ASK_BYTES / 6
        return
    assert text.isascii()
    assert decode_asks(text) == (ask,)


def test_an_ask_with_every_signal_fits_and_asks_beyond_the_limit_wait() -> None:
    peers = {str(each): PeerValue(1234.5, 0.123, 512) for each in Signal}
    asks = [Ask(episode="0123456789abcdef", job="j" * 60, rank=1, peers=peers)] * 9
    assert 1 <= len(decode_asks(encode_asks(asks))) < 9
    assert len(encode_asks(asks)) <= MAX_ASK_BYTES
    with pytest.raises(msgspec.DecodeError):
        decode_asks("[" + " " * MAX_ASK_BYTES + "]")


def test_fleet_reads_the_signals_of_a_push_that_has_nothing_else() -> None:
    body = encode_protobuf(MetricsRequest((encode_signals(WHO, {Signal.POWER: 1.0}, 7),)))
    assert decode_plain_push(body, False) is None
    assert decode_push(decode_protobuf(MetricsRequest, body)).has_measurements
