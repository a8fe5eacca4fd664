"""`ingero nodes check`: what to do about a clock."""

import pytest

from ingero.cli.commands.nodes import clock_problem
from ingero.core.clocks.skew import ClockOffset


@pytest.mark.parametrize(
    ("offset_ms", "rtt_ms", "problem"),
    [
        (9.0, 2.0, None),
        (11.0, 2.0, "its clock differs"),
        (0.0, 40.0, "the round trip is too long to compare clocks closer than 20 ms"),
        (29.0, 40.0, "the round trip is too long"),
        (7_200_000.0, 40.0, "its clock differs"),
    ],
)
def test_a_wrong_clock_is_not_hidden_by_a_long_way(
    offset_ms: float, rtt_ms: float, problem: str | None
) -> None:
    text = clock_problem(ClockOffset(offset_ms, rtt_ms), 10.0)
    assert text is None if problem is None else (text or "").startswith(problem)
