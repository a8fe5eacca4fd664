"""Events of a chain: one pass over all events finds the same rows as one pass per chain."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ingero.contract.chain import CHAIN_WINDOW_NS
from ingero.contract.events import OpKey
from ingero.contract.timeline.model import SliceChunk, TimelineChain
from ingero.core.chains.links import link_events

SECOND_NS = 10**9
Event = tuple[int, int, int, int, int]  # time, duration, source, op, node
SOURCES = {"HOST": (3,), "IO": (5,), "DRIVER": (4,), "NET": (6, 7)}


def chunks(events: list[Event], size: int) -> list[SliceChunk]:
    parts = []
    for begin in range(0, len(events), size):
        part = events[begin : begin + size]
        ts, duration, source, op, node = (
            np.array(column, np.int64) for column in zip(*part, strict=True)
        )
        zeros = np.zeros(len(part), np.int64)
        rows = np.arange(begin, begin + len(part))
        parts.append(SliceChunk(ts, duration, source, op, zeros, zeros, zeros, zeros, node, rows))
    return parts


def chain(node: int, at_ns: int, layers: list[str], op: OpKey | None) -> TimelineChain:
    return TimelineChain(
        node=node, at_ns=at_ns, severity="HIGH", summary="", root_cause="", layers=layers, op=op
    )


def slowest(events: list[Event], one: TimelineChain, keys: set[OpKey]) -> int | None:
    found = [
        (duration, row)
        for row, (ts, duration, source, op, node) in enumerate(events)
        if node == one.node
        and one.at_ns - CHAIN_WINDOW_NS <= ts <= one.at_ns
        and (source, op) in keys
    ]
    return max(found)[1] if found else None


@given(
    st.lists(
        st.tuples(
            st.integers(0, 200).map(lambda s: s * SECOND_NS), st.integers(0, 9),
            st.integers(3, 7), st.integers(1, 2),
            st.integers(0, 1),
        ),
        max_size=60,
    ).map(sorted),
    st.lists(
        st.builds(
            chain, st.integers(0, 2), st.integers(-5, 260).map(lambda s: s * SECOND_NS),
            st.lists(st.sampled_from([*SOURCES, "SYSTEM"]), max_size=4),
            st.one_of(st.none(), st.tuples(st.integers(3, 5), st.integers(1, 2))),
        ),
        max_size=5,
    ),
    st.integers(1, 30),
)  # fmt: skip
@settings(max_examples=80)
def test_the_slowest_of_each_layer_then_the_call(
    events: list[Event], chains: list[TimelineChain], size: int
) -> None:
    linked = link_events(chains, chunks(events, size))
    assert [(one.node, one.at_ns, one.layers) for one in linked] == [
        (one.node, one.at_ns, one.layers) for one in chains
    ]
    for one in linked:
        wanted = [SOURCES.get(layer, ()) for layer in one.layers]
        wanted = [sources for sources in wanted if one.op is None or one.op[0] not in sources]
        rows = [
            slowest(events, one, {(source, op) for source in sources for op in (1, 2)})
            for sources in wanted
        ]
        rows += [] if one.op is None else [slowest(events, one, {one.op})]
        assert one.rows == list(dict.fromkeys(row for row in rows if row is not None))
