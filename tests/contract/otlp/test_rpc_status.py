"""The status with which a receiver answers a request that it refuses."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingero.contract.otlp.body import Encoding
from ingero.contract.otlp.rpc_status import decode_retry_after_s, encode_retry_info, encode_status


def test_errors_are_a_status_message() -> None:
    assert encode_status(Encoding.JSON, 3, "no") == b'{"code":3,"message":"no"}'
    assert encode_status(Encoding.PROTOBUF, 3, "x" * 200) == b"\x08\x03\x12\xc8\x01" + b"x" * 200


def test_the_delay_of_a_retry_is_encoded_as_google_does() -> None:
    """The bytes as `protoc --encode google.rpc.Status` writes them."""
    retry = b"\x0a\x02\x08\x05"
    packed = b"\x0a\x28type.googleapis.com/google.rpc.RetryInfo\x12\x04" + retry
    assert encode_retry_info(5) == retry
    assert encode_status(Encoding.PROTOBUF, 8, "no", 5) == b"\x08\x08\x12\x02no\x1a\x30" + packed
    assert json.loads(encode_status(Encoding.JSON, 8, "no", 5))["details"] == [
        {"@type": "type.googleapis.com/google.rpc.RetryInfo", "retryDelay": "5s"}
    ]


@given(st.integers(0, 16), st.text(max_size=50), st.none() | st.integers(0, 100_000))
def test_the_encoded_delay_is_decoded(code: int, message: str, retry_after_s: int | None) -> None:
    assert (
        decode_retry_after_s(encode_status(Encoding.PROTOBUF, code, message, retry_after_s))
        == retry_after_s
    )


@pytest.mark.parametrize("other", [b"", b"\xff\xff", b"not a status", b"\x1a\x02\x0a\x7f"])
def test_bytes_that_are_no_status_ask_for_no_delay(other: bytes) -> None:
    assert decode_retry_after_s(other) is None


@given(st.binary(max_size=80))
def test_no_bytes_break_the_reader(status: bytes) -> None:
    found = decode_retry_after_s(status)
    assert found is None or found >= 0
