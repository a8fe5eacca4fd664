"""Known series: the compiled twins do what the pure functions do."""

from hypothesis import given
from hypothesis import strategies as st
from tests.support.compiled import needs_codecs

from ingero.contract.exposition import render_value
from ingero.fleet.scrape.known import (
    Families,
    Place,
    add_known,
    add_known_purely,
    lines_of,
    lines_of_purely,
)

places = st.tuples(
    st.sampled_from(["a", "größe"]),
    st.sampled_from(["gauge", "counter"]),
    st.just("help"),
    st.sampled_from(["", '{node="1"}', '{node="ä"}', '{node="2"}']),
)
values = (
    st.floats()
    | st.integers(-(2**63), 2**63 - 1)
    | st.sampled_from([0.0, -0.0, 1e15, -1e15, 999999999999999.0, 1e16, 5e-324, 0.1, 3.0])
)
points = st.lists(st.tuples(places, st.integers(0, 3), values), max_size=8)


@needs_codecs
@given(st.lists(points, max_size=3), st.integers(0, 6))
def test_twins_add_and_write_the_same_series(
    bodies: list[list[tuple[Place, int, float]]], most: int
) -> None:
    found: list[Families] = [{}, {}]
    totals = [0, 0]
    for body in bodies:
        known = [place for place, _, _ in body]
        numbers = tuple(number for _, *pair in body for number in pair)
        ours = add_known(known, numbers, found[0], totals[0], most)
        theirs = add_known_purely(known, numbers, found[1], totals[1], most)
        assert ours == theirs
        totals = [ours[0], theirs[0]]
    assert found[0] == found[1]
    for name, (_, _, samples) in found[0].items():
        assert lines_of(name, samples.items()) == lines_of_purely(name, samples.items())


@needs_codecs
@given(values)
def test_values_are_spelled_as_in_every_other_family(value: float) -> None:
    families: Families = {}
    assert add_known([("a", "gauge", "", "")], (0, value), families, 0, 1) == (1, 0)
    assert families["a"][2][""] == (0, render_value(value))
