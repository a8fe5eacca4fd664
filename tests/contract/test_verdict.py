"""Verdicts on the wire: what a receiver makes of lists of this and of later versions."""

import json

import msgspec
import pytest

from ingero.contract.verdict import (
    MAX_HEADER_BYTES,
    CauseClass,
    Verdict,
    VerdictState,
    decode_verdicts,
    encode_verdicts,
)

SLOW = Verdict(
    episode="5f0c",
    state=VerdictState.STRAGGLER,
    node="gpu07",
    rank=61,
    cause_class=CauseClass.COMPUTE,
    loss=0.061,
    loss_error=0.003,
    cause="SM clock 1410 MHz, peers 1980 (power brake)",
    since=1000.0,
    confidence=0.99,
)


def _list(**changes: object) -> str:
    return json.dumps([json.loads(encode_verdicts([SLOW]))[0] | changes])


def test_what_was_encoded_is_decoded_and_names_are_those_of_the_wire() -> None:
    text = encode_verdicts([SLOW])
    assert decode_verdicts(text) == [SLOW]
    assert json.loads(text)[0] == {
        "cause": "SM clock 1410 MHz, peers 1980 (power brake)",
        "class": "compute",
        "confidence": 0.99,
        "episode": "5f0c",
        "loss": 0.061,
        "loss_error": 0.003,
        "node": "gpu07",
        "rank": 61,
        "since": 1000.0,
        "state": "straggler",
    }


def test_an_unknown_state_drops_that_verdict_alone() -> None:
    later = json.loads(_list(state="quarantined"))
    assert decode_verdicts(json.dumps(later + json.loads(encode_verdicts([SLOW])))) == [SLOW]


@pytest.mark.parametrize(
    ("changes", "understood"),
    [
        ({"colour": "red"}, {}),
        ({"class": "gremlins"}, {"cause_class": CauseClass.UNKNOWN}),
        ({"loss": "much", "cause": 7}, {"loss": None, "cause": ""}),
    ],
)
def test_unknown_fields_and_values_are_ignored_one_by_one(
    changes: dict[str, object], understood: dict[str, object]
) -> None:
    assert decode_verdicts(_list(**changes)) == [msgspec.structs.replace(SLOW, **understood)]


@pytest.mark.parametrize("text", ['[1, null, "x", {}, {"episode": "a"}]', "[]"])
def test_what_is_no_verdict_is_left_out(text: str) -> None:
    assert decode_verdicts(text) == []


@pytest.mark.parametrize("text", ["{}", "no JSON", "[1"])
def test_what_is_no_list_is_refused(text: str) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode_verdicts(text)


def test_a_list_that_is_too_long_keeps_the_most_confident() -> None:
    many = [
        msgspec.structs.replace(SLOW, episode=str(i), confidence=i / 100, evidence="x" * 200)
        for i in range(20)
    ]
    text = encode_verdicts(many)
    assert len(text) <= MAX_HEADER_BYTES
    kept = decode_verdicts(text)
    assert [verdict.episode for verdict in kept] == [str(19 - i) for i in range(len(kept))]
