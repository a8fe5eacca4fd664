from hypothesis import given
from hypothesis import strategies as st

from ingero.contract.otlp.body import Encoding
from ingero.fleet.kept import KeptBodies, KeptBodiesPurely

keys = st.tuples(st.sampled_from("ab"), st.sampled_from("xyz"), st.sampled_from(["", "score"]))
changes = st.one_of(
    st.tuples(keys, st.binary(max_size=40), st.sampled_from(Encoding)),
    st.integers(0, 40),  # expire what is older
)


def contents(shelf: KeptBodiesPurely) -> object:
    bodies = {key: (kept.at_s, kept.body, kept.encoding) for key, kept in shelf.bodies.items()}
    return bodies, shelf.size_bytes, shelf.dropped


@given(st.lists(changes, max_size=40))
def test_compiled_and_pure_shelf_agree_and_stay_within_bounds(wanted: list[object]) -> None:
    shelves = [kind(30, 120, 6) for kind in (KeptBodies, KeptBodiesPurely)]
    for now_s, change in enumerate(wanted):
        for shelf in shelves:
            if isinstance(change, tuple):
                key, body, encoding = change
                shelf.keep(key, body, encoding, float(now_s))
            else:
                shelf.expire(float(change))
        assert contents(shelves[0]) == contents(shelves[1])
        bodies = shelves[1].bodies
        assert sum(len(kept.body) for kept in bodies.values()) == shelves[1].size_bytes <= 120
        assert len(bodies) <= 6


def test_the_oldest_make_room() -> None:
    shelf = KeptBodies(10, 1000, 4)
    for number in range(5):
        shelf.keep(("c", f"n{number}", ""), b"x", Encoding.JSON, float(number))
    assert [node for _, node, _ in shelf.bodies] == ["n2", "n3", "n4"]
