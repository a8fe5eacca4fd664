"""The times of Fleet's own operations, and the page that shows them."""

import pytest
from tests.support.pushes import PB, get, post, protobuf, running

from ingero.fleet.zpages.operations import KEPT, MAX_OPERATIONS, Operation, Operations, Sample


def test_each_time_counts_in_its_range_and_the_slowest_stay() -> None:
    operation = Operation()
    for number in range(3 * KEPT):
        operation.add(Sample(0.0, number / 100, "ok"), is_failed=False)
    assert operation.counts == [1, 0, 0, 9, 20, 0, 0]
    assert [each.took_s for each in operation.slowest] == [
        number / 100 for number in reversed(range(2 * KEPT, 3 * KEPT))
    ]


def test_failures_are_kept_with_their_reason_and_names_are_bounded() -> None:
    operations = Operations()
    for _ in range(2 * KEPT):
        with pytest.raises(ValueError, match="no"), operations.measured("tick"):
            raise ValueError("no")
    with operations.measured("tick") as failed:
        failed.append("HTTP 404")
    tick = operations.by_name["tick"]
    assert (tick.failed, len(tick.failures), tick.running) == (2 * KEPT + 1, KEPT, 0)
    assert [tick.failures[0].outcome, tick.failures[-1].outcome] == ["ValueError", "HTTP 404"]
    for number in range(2 * MAX_OPERATIONS):
        with operations.measured(f"operation {number}"):
            pass
    assert len(operations.by_name) == MAX_OPERATIONS + 1
    assert sum(operations.by_name["other"].counts) == 2 * MAX_OPERATIONS - (MAX_OPERATIONS - 1)


async def test_tracez_shows_requests_ticks_and_failures() -> None:
    async with running(tick_s=0.01) as fleet:
        await post(f"http://{fleet.addresses['http']}/v1/metrics", protobuf("a", 0.9), PB)
        await get(f"http://{fleet.addresses['threshold']}/api/v1/nowhere")
        await get(f"http://{fleet.addresses['health']}/readyz")
        while "tick" not in fleet._listeners.operations.by_name:
            await get(f"http://{fleet.addresses['health']}/readyz")
        status, page = await get(f"http://{fleet.addresses['health']}/debug/tracez")
    assert status == 200
    assert "<p>1 plain pushes were answered" in page
    for name in ("health GET", "threshold GET", "tick"):
        assert f"<td>{name}</td>" in page and f"<h2>{name}</h2>" in page
    assert "<td>HTTP 404</td>" in page
