import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingero.contract.threshold import (
    COLD_START,
    Delivery,
    QuorumReason,
    ServedThreshold,
    decode_answer,
    decode_headers,
    encode_answer,
    encode_quorum,
    encode_threshold,
)


def test_six_decimals_on_the_wire() -> None:
    """F065, V1."""
    assert encode_threshold(0.90 - 2 * 1.4826 * 0.01) == "0.870348"


@given(st.floats(0.1, 0.99), st.booleans())
def test_headers_round_trip_to_six_decimals(value: float, quorum_met: bool) -> None:
    delivery, served = decode_headers(encode_threshold(value), encode_quorum(quorum_met))
    assert delivery is Delivery.HIT
    assert served == ServedThreshold(round(value, 6), quorum_met)


@pytest.mark.parametrize(  # vectors 44-51 and V19
    ("threshold", "quorum", "expected"),
    [
        ("0.82", "true", Delivery.HIT),
        ("0.82", "false", Delivery.HIT),
        (" 0.82 ", "True", Delivery.HIT),
        ("0.82", "FALSE", Delivery.HIT),
        ("0.1", "true", Delivery.HIT),
        ("0.99", "true", Delivery.HIT),
        ("0.82", "yes", Delivery.REJECTED),
        ("0.82", "1", Delivery.REJECTED),
        ("0.87", "maybe", Delivery.REJECTED),
        *(
            (text, "true", Delivery.REJECTED)
            for text in ("0.05", "0.999", "0", "1.0", "-0.5", "1.5")
        ),
        *(
            (text, "true", Delivery.REJECTED)
            for text in ("abc", "NaN", "Inf", "1e400", "0_8", "٠.٥", "0x1p-1")
        ),
        ("0.82", None, Delivery.MISS),
        ("0.87", "", Delivery.MISS),
        ("  ", "true", Delivery.MISS),
        (None, None, Delivery.MISS),
    ],
)
def test_header_pair(threshold: str | None, quorum: str | None, expected: Delivery) -> None:
    delivery, served = decode_headers(threshold, quorum)
    assert delivery is expected
    assert (served is None) == (expected is not Delivery.HIT)


def test_answer_of_the_get_endpoint() -> None:
    """F007: exactly two keys, and a cold start that agents understand."""
    assert (
        encode_answer(ServedThreshold(0.870348, True))
        == b'{"threshold":0.870348,"quorum_met":true}'
    )
    few = ServedThreshold(0.87, False, QuorumReason.FEW_NODES)
    assert encode_answer(few) == b'{"threshold":0.870000,"quorum_met":false}'
    assert decode_answer(encode_answer(few), "few_nodes") == (Delivery.HIT, few)
    assert encode_answer(COLD_START) == b'{"threshold":0,"quorum_met":false}'
    assert decode_answer(encode_answer(ServedThreshold(0.870348, True))) == (
        Delivery.HIT,
        ServedThreshold(0.870348, True),
    )
    assert decode_answer(encode_answer(COLD_START)) == (Delivery.HIT, COLD_START)


@pytest.mark.parametrize(
    "body",
    [
        b"{}",
        b'{"threshold":0.8}',
        b'{"threshold":"0.8","quorum_met":true}',
        b'{"threshold":0.8,"quorum_met":1}',
        b'{"threshold":NaN,"quorum_met":true}',
        b'{"threshold":1e400,"quorum_met":true}',
        b'{"threshold":0,"quorum_met":true}',
        b'{"threshold":true,"quorum_met":true}',
        b'{"error":"no"}',
        b"\xff",
    ],
)
def test_answers_that_are_not_believed(body: bytes) -> None:
    assert decode_answer(body) == (Delivery.REJECTED, None)


@pytest.mark.parametrize(
    ("quorum", "text", "reason"),
    [
        ("false", "few_nodes", QuorumReason.FEW_NODES),
        ("false", " Panic ", QuorumReason.PANIC),
        ("false", "full_moon", None),
        ("false", None, None),
        ("true", "few_nodes", None),
    ],
)
def test_f016_the_reason_is_read_without_quorum_and_an_unknown_one_is_ignored(
    quorum: str, text: str | None, reason: QuorumReason | None
) -> None:
    expected = ServedThreshold(0.8, quorum == "true", reason)
    assert decode_headers("0.8", quorum, text) == (Delivery.HIT, expected)
