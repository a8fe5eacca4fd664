"""What is wrong with an argument, said without the words of msgspec."""

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
