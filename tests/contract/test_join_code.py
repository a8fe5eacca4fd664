"""Join codes."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingero.contract.enrolment.code import JoinCode, decode_code, encode_code
from ingero.errors import MalformedInput


@given(st.binary(min_size=32, max_size=32), st.binary(min_size=16, max_size=16))
def test_a_code_holds_fingerprint_and_secret(fingerprint: bytes, secret: bytes) -> None:
    code = JoinCode(fingerprint, secret)
    text = encode_code(code)
    assert decode_code(f" {text}\n") == code
    assert text.isascii()
    assert not set(text) & set(" $&;'\"\\*?!")
    assert encode_code(code)[-16:] not in str(code)


@given(st.text(max_size=80))
def test_anything_else_is_refused_without_being_quoted(text: str) -> None:
    with pytest.raises(MalformedInput) as caught:
        decode_code(text)
    assert len(text) < 9 or text not in str(caught.value)
