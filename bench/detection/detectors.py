"""The outcome of a detector on a world, and the published threshold rule in two variants."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from bench.detection.world import World
from ingero.contract.verdict import Verdict, VerdictState
from ingero.core.robust import MAD_TO_SIGMA

THRESHOLD_TICK_S = 10
NAMES = ("threshold k 2", "threshold k 3.5, 3 in a row", "verdict")


@dataclass
class Outcome:
    """Alarms as (column, second raised); a column may be raised again after it recovered."""

    alarms: list[tuple[int, int]] = field(default_factory=list)
    # fleet, and the event reported for it
    fleet_events: list[tuple[int, Verdict]] = field(default_factory=list)
    # the first straggler verdict of a column
    verdicts: dict[int, Verdict] = field(default_factory=dict)

    def note(self, verdict: Verdict, second: int, column_of: Callable[[Verdict], int]) -> None:
        """Note a verdict that is new: an alarm, an event, or nothing of these."""
        if verdict.state is VerdictState.STRAGGLER:
            column = column_of(verdict)
            known = self.verdicts.get(column)
            if known is None or known.episode != verdict.episode:
                self.alarms.append((column, second + 1))
            self.verdicts[column] = verdict
        elif verdict.node == "" and verdict.state in (
            VerdictState.FLEET_EVENT,
            VerdictState.NOT_SURE,
        ):
            fleet = int((verdict.job or "").removeprefix("job"))
            self.fleet_events.append((fleet, verdict))


def run_threshold(world: World, k: float, confirmations: int) -> Outcome:
    """Run the threshold rule: alarm below median - k · 1.4826 · MAD, smoothed by 0.2.

    The score is the inverse of own time, relative to the node's first seconds.
    """
    ticks = len(world.log_own) // THRESHOLD_TICK_S
    rows = world.log_own[: ticks * THRESHOLD_TICK_S].reshape(ticks, THRESHOLD_TICK_S, -1)
    with np.errstate(all="ignore"):
        known = ~np.isnan(rows).all(axis=1)
        mean = np.where(
            known, np.nansum(rows, axis=1) / np.maximum((~np.isnan(rows)).sum(axis=1), 1), np.nan
        )
        start = _nanmedian(mean[:12], 0)
        score = np.clip(0.95 * np.exp(-(mean - start)), 0.0, 1.0)
        by_fleet = score.reshape(ticks, world.fleets, world.size)
        centre = _nanmedian(by_fleet, 2)
        raw = centre - k * MAD_TO_SIGMA * _nanmedian(np.abs(by_fleet - centre[:, :, None]), 2)
    line, streak = raw[0], np.zeros(score.shape[1], int)
    outcome, raised = Outcome(), np.zeros(score.shape[1], bool)
    for tick in range(12, ticks):
        line = np.where(np.isnan(raw[tick]), line, 0.2 * raw[tick] + 0.8 * line)
        streak = np.where(score[tick] < line[world.fleet], streak + 1, 0)
        now = streak >= confirmations
        outcome.alarms += [
            (int(c), (tick + 1) * THRESHOLD_TICK_S) for c in np.flatnonzero(now & ~raised)
        ]
        raised = now
    return outcome


def _nanmedian(values: np.ndarray, axis: int) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # seconds in which nobody reported
        return np.nanmedian(values, axis=axis)
