"""What an engine did between two pages: rates and means from the growth of its counters."""

from typing import Final

from ingero.contract.measurements.engines import EngineReport
from ingero.core.inference.metric_table import GAUGES, RATES, SUMS, Value
from ingero.core.inference.page import Values

LONGEST_S: Final = 60.0  # between two pages that can be compared


def measure(before: Values | None, after: Values, seconds: float) -> EngineReport:
    """Return the report of one rank.

    Without an earlier page, after a restart or a long gap there are gauges only. A mean needs a
    count that grew: nothing finished is not zero seconds.
    """
    found = {str(name): after[name] for name in GAUGES if name in after}
    if before is None or not 0 < seconds <= LONGEST_S or has_restarted(before, after):
        return EngineReport(**found)  # type: ignore[arg-type]  # the names of gauges are fields
    for field, counter in RATES.items():
        grown = _growth(before, after, counter)
        if grown is not None:
            found[field] = grown / seconds
    for field, (total, count) in SUMS.items():
        grown, counted = _growth(before, after, total), _growth(before, after, count)
        if grown is not None and counted:
            found[field] = grown / counted
    latest_s = after.get(Value.STEP_LATEST)
    if latest_s and latest_s != before.get(Value.STEP_LATEST):  # else it is of an earlier step
        found["step_s"] = latest_s
    return EngineReport(**found)  # type: ignore[arg-type]  # all are fields with numbers


def has_restarted(before: Values, after: Values) -> bool:
    """Return whether any counter fell, which only a new process explains."""
    return any(
        after[name] < before[name]
        for name in before
        if name not in (*GAUGES, Value.STEP_LATEST) and name in after
    )


def _growth(before: Values, after: Values, name: Value) -> float | None:
    if name not in before or name not in after:
        return None
    return after[name] - before[name]
