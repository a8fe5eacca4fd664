from hypothesis import given
from hypothesis import strategies as st

from ingero.contract.otlp.body import Encoding
from ingero.fleet.kept import KeptBodies, KeptBodiesPurely

keys = st.tuples(st.sampled_from("ab"), st.sampled_from("xyz"), st.sampled_from(["", "score"]))
changes = st.one_of(
    st.tuples(keys, st.binary(max_size=40), st.sampled_from(Encoding)),
    st.integers(0, 40),  # expire what is older
)


def contents(kept: KeptBodiesPurely) -> object:
    bodies = {key: (body.at_s, body.body, body.encoding) for key, body in kept.bodies.items()}
    return bodies, kept.size_bytes, kept.dropped


@given(st.lists(changes, max_size=40))
def test_compiled_and_pure_version_agree_and_stay_within_bounds(wanted: list[object]) -> None:
    compiled, pure = (kind(30, 120, 6) for kind in (KeptBodies, KeptBodiesPurely))
    for now_s, change in enumerate(wanted):
        for kept in (compiled, pure):
            if isinstance(change, tuple):
                key, body, encoding = change
                kept.keep(key, body, encoding, float(now_s))
            else:
                kept.expire(float(change))
        assert contents(compiled) == contents(pure)
        bodies = pure.bodies
        assert sum(len(body.body) for body in bodies.values()) == pure.size_bytes <= 120
        assert len(bodies) <= 6


def test_the_oldest_bodies_are_dropped_first() -> None:
    bodies = KeptBodies(10, 1000, 4)
    for number in range(5):
        bodies.keep(("c", f"n{number}", ""), b"x", Encoding.JSON, float(number))
    assert [node for _, node, _ in bodies.bodies] == ["n2", "n3", "n4"]
