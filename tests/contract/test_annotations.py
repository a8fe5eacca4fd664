"""Annotation lines and their limits."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingero.contract.annotations import Annotation, decode_annotation, encode_annotation
from ingero.errors import MalformedInput

keys = st.from_regex(r"[A-Za-z0-9_.-]{1,64}", fullmatch=True)
values = st.text(st.characters(exclude_categories=("Cc", "Cs")), max_size=60)
numbers = st.integers(0, 2**63 - 1)


@given(st.dictionaries(keys, values, min_size=1, max_size=8), numbers, numbers, numbers)
def test_round_trip(labels: dict[str, str], at_ns: int, pid: int, start: int) -> None:
    note = Annotation(
        labels=labels, at_ns=at_ns, pid=pid, start_time=start, span_start_ns=5, span_end_ns=9
    )
    assert decode_annotation(encode_annotation(note)) == note


@pytest.mark.parametrize(
    "line",
    [
        {"labels": {f"k{i}": "v" for i in range(33)}},
        {"labels": {"a key": "v"}},
        {"labels": {"k" * 65: "v"}},
        {"labels": {"": "v"}},
        {"labels": {"k": "v" * 257}},
        {"labels": {"k": "ü" * 129}},
        {"labels": {"k": "a\x1bb"}},
        {"labels": {"k": ["v"]}},
        {"labels": {}},
        {},
        {"labels": {"k": "v"}, "span_start": 9, "span_end": 5},
        {"labels": {"k": "v"}, "span_start": 9},
        {"labels": {"k": "v"}, "pid": -1},
        {"labels": {"k": "v"}, "ts": 2**63},
        {"labels": {"k": "v"}, "pid": "7"},
        {"labels": {"k": "v"}, "v": 2},
        [1],
        "labels",
    ],
    ids=str,
)
def test_violations_are_refused(line: object) -> None:
    """V29."""
    with pytest.raises(MalformedInput):
        decode_annotation(json.dumps(line).encode())


def test_one_label_is_enough_and_numbers_become_text() -> None:
    """V29."""
    assert decode_annotation(b'{"labels": {"step": 12}, "extra": 1}') == Annotation(
        labels={"step": "12"}
    )
    assert decode_annotation(b'{"labels": {"x": 0.5, "y": true}}').labels == {
        "x": "0.5",
        "y": "true",
    }


def test_long_lines_and_noise_are_refused() -> None:
    for line in (b'{"labels": {"k": "v"}' + b" " * 16384 + b"}", b"\xff\xfe", b"", b"{"):
        with pytest.raises(MalformedInput):
            decode_annotation(line)


@pytest.mark.parametrize(
    "line", [b'{"labels":{"k":"v"},"deep":' + b"[" * 8000, b'{"labels":{"k":"\xff"}}']
)
def test_hostile_bytes_are_refused_like_everything_else(line: bytes) -> None:
    with pytest.raises(MalformedInput):
        decode_annotation(line)
