"""Throttle bits and edges: the published vectors."""

import pytest

from ingero.core.health.throttle import ThrottleEdges, ThrottleReason, decode_throttle

P, T, S, H = ThrottleReason.POWER, ThrottleReason.THERMAL, ThrottleReason.SW, ThrottleReason.HW
OFF: frozenset[ThrottleReason] = frozenset()


@pytest.mark.parametrize(
    ("mask", "reasons"),
    [
        (0x0, set()), (0x1, set()), (0x2, {S}), (0x4, {P, S}), (0x8, {H}), (0x10, {S}),
        (0x20, {T, S}), (0x40, {T, H}), (0x80, {P, H}), (0x100, {S}),
        (2**40, {H}), (0xC4, {P, T, S, H}),
    ],
)  # fmt: skip
def test_bits_vector_80(mask: int, reasons: set[ThrottleReason]) -> None:
    assert decode_throttle(mask) == reasons


@pytest.mark.parametrize(
    ("readings", "counts"),
    [
        ([OFF, {P}, {P}, {P, T}], {P: 1, T: 1}),
        ([OFF, {P}, OFF, {P}, OFF], {P: 2}),
        ([{P}], {}),
    ],
)
def test_edges_vector_81(
    readings: list[set[ThrottleReason]], counts: dict[ThrottleReason, int]
) -> None:
    edges = ThrottleEdges()
    for reading in readings:
        edges.update("gpu-0", frozenset(reading))
    assert {reason: count for (_, reason), count in edges.counts.items()} == counts


def test_the_last_state_is_not_shown_for_ever_when_readings_fail_must_50() -> None:
    edges, throttled = ThrottleEdges(), frozenset({P})
    edges.update_all({"gpu-0": throttled, "gpu-1": throttled})
    for _ in range(2):
        edges.update_all({"gpu-1": throttled})
    assert edges.active == {"gpu-0": throttled, "gpu-1": throttled}, (
        "two missing readings are tolerated"
    )
    edges.update_all({"gpu-0": throttled, "gpu-1": throttled})
    for _ in range(3):
        edges.update_all({"gpu-1": throttled})
    assert edges.active == {"gpu-1": throttled}
    edges.update_all({"gpu-0": throttled})
    assert edges.counts == {}, "the first reading of a returning GPU is not an edge"
