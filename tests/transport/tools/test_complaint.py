"""What is wrong with an argument, said without the words of msgspec."""

import datetime
from typing import Annotated, Any, Literal

import msgspec
import pytest

from ingero.transport.tools.complaint import complaint
from ingero.transport.tools.tool import self_contained_schema


class Inner(msgspec.Struct):
    unit: str


class Asked(msgspec.Struct):
    sql: Annotated[str, msgspec.Meta(description="one SELECT", max_length=5)]
    window: Annotated[str, msgspec.Meta(pattern="^[0-9]+m$", description="how far back")] = "1m"
    by: Literal["node", "op"] = "node"
    rank: Annotated[int, msgspec.Meta(ge=0)] | None = None
    k: float = 1.0
    tsc: bool = True
    inner: Inner | None = None


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({}, "give sql; sql: one SELECT"),
        ({"sql": 1}, "sql must be a text, not 1; sql: one SELECT"),
        (
            {"sql": "x" * 99},
            f"sql must be a text of a length of at most 5, not '{'x' * 58}…; sql: one SELECT",
        ),
        ({"sql": "x", "window": "1h"}, "window cannot be '1h'; window: how far back"),
        ({"sql": "x", "by": "job"}, "by cannot be 'job'; there are: node, op"),
        ({"sql": "x", "rank": -1}, "rank must be a whole number of at least 0, not -1"),
        ({"sql": "x", "rank": "a"}, "rank must be a whole number, not 'a'"),
        ({"sql": "x", "k": []}, "k must be a number, not []"),
        ({"sql": "x", "tsc": "maybe"}, "tsc must be true or false, not 'maybe'"),
        ({"sql": "x", "inner": {}}, "inner needs the field unit"),
    ],
)
def test_it_names_the_argument_what_fits_and_what_was_given(
    given: dict[str, Any], said: str
) -> None:
    with pytest.raises(msgspec.ValidationError) as refused:
        msgspec.convert(given, Asked)
    properties = self_contained_schema(Asked)["properties"]
    assert complaint(properties, str(refused.value), given) == said


def test_what_is_not_understood_is_repeated() -> None:
    assert complaint({}, "something new", {}) == "something new"


class Deep(msgspec.Struct, forbid_unknown_fields=True):
    unit: Annotated[int, msgspec.Meta(multiple_of=5)]
    at: datetime.datetime | None = None


class Nested(msgspec.Struct, forbid_unknown_fields=True):
    pids: Annotated[list[int], msgspec.Meta(max_length=2, description="several processes")] = []
    kinds: list[Literal["x", "y"]] = []
    pair: tuple[int, str] | None = None
    deep: Deep | None = None
    many: list[Deep] = []
    named: dict[str, int] = {}
    numbered: dict[int, Deep] = {}
    either: int | list[int] | None = None
    nothing: None = None
    flat: Annotated[float, msgspec.Meta(gt=0.5)] = 1.0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"pids": [1, "a"]},
            "pids[1] must be a whole number, not 'a'; pids: several processes",
        ),
        (
            {"pids": [1, 2, 3]},
            "pids must be a list of a length of at most 2, not [1, 2, 3]; pids: several processes",
        ),
        ({"kinds": ["x", "z"]}, "kinds[1] cannot be 'z'; there are: x, y"),
        ({"pair": [1]}, "pair must be a list of a length of 2, not [1]"),
        ({"pair": [1, 2]}, "pair[1] must be a text, not 2"),
        ({"deep": {}}, "deep needs the field unit"),
        (
            {"deep": {"unit": 3}},
            "deep.unit must be a whole number that is a multiple of 5, not 3",
        ),
        ({"deep": {"unit": 5, "b": 1}}, "deep has no field 'b'"),
        ({"deep": {"unit": 5, "at": "now"}}, "deep.at cannot be 'now'"),
        ({"deep": [5]}, "deep must be an object, not [5]"),
        ({"many": [{"unit": 5}, {}]}, "many[1] needs the field unit"),
        ({"many": [{"unit": "a"}]}, "many[0].unit must be a whole number, not 'a'"),
        ({"many": [{"\x1b`": 1}]}, "many[0] has no field '\\x1b`'"),
        ({"named": {"k": "a"}}, "named[…] must be a whole number"),
        ({"named": {1: 2}}, "a key of named must be a text"),
        ({"numbered": {1: {"unit": "a"}}}, "numbered[…].unit must be a whole number"),
        ({"numbered": {"a": {}}}, "a key of numbered must be a whole number"),
        ({"either": "z"}, "either must be a whole number or a list, not 'z'"),
        ({"either": ["z"]}, "either[0] must be a whole number, not 'z'"),
        ({"nothing": 1}, "nothing must be left out, not 1"),
        ({"flat": 0.5}, "flat must be a number of more than 0.5, not 0.5"),
        (
            {"other": 1},
            "it has no field 'other'",
        ),
    ],
)
def test_it_names_the_place_inside_a_list_or_an_object(given: dict[str, Any], said: str) -> None:
    with pytest.raises(msgspec.ValidationError) as refused:
        msgspec.convert(given, Nested)
    properties = self_contained_schema(Nested)["properties"]
    assert complaint(properties, str(refused.value), given) == said
