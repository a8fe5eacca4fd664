"""What a fan-out says when it is over."""

import pytest

from ingero.cli.fanout.ask import FanoutResult
from ingero.cli.fanout.options import FanoutOptions
from ingero.cli.fanout.report import report_problems
from ingero.core.clocks.skew import ClockOffset
from ingero.core.rowmerge import RowMerge
from ingero.transport.fanout.nodes import FanoutPolicy


@pytest.mark.parametrize(
    ("ahead_ms", "said"),
    [(50.0, "WARNING: clocks differ: b is 50 ms ahead of a (round trip 1 ms)\n"), (9.0, "")],
)
def test_f131_clocks_more_than_10_ms_apart_are_a_warning(
    ahead_ms: float, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    options = FanoutOptions(["a", "b"], FanoutPolicy(), skew_threshold_ms=10.0)
    result = FanoutResult(offsets={"a": ClockOffset(0.0, 1.0), "b": ClockOffset(ahead_ms, 1.0)})
    assert report_problems(options, RowMerge(), result) == 0
    assert capsys.readouterr().err == said
