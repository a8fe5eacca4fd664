"""The period of stalls, counted in steps."""

from collections.abc import Sequence

import numpy as np

_REGULAR = 0.6
_SPREAD = 0.2  # of the period: by so much gaps may differ from it, half of them by less
_MAX_MISSED = 32  # stalls that may go unseen between two that were seen


def stall_period(steps: Sequence[int]) -> int | None:
    """Return the steps from one stall to the next, or None where these are irregular."""
    gaps = np.diff(np.asarray(steps))
    if len(gaps) < 2:
        return None
    middle = float(np.median(gaps))
    regular = float(np.mean(np.abs(gaps - middle) <= max(1.0, 0.1 * middle)))
    return round(middle) if middle > 1 and regular >= _REGULAR else None


def missed_period(steps: Sequence[int]) -> int | None:
    """Return the period of stalls of which some go unseen: a missed one doubles a gap."""
    gaps = np.diff(np.asarray(steps)).astype(np.float64)
    if not len(gaps):
        return None
    period = float(np.median(gaps))
    gaps /= np.maximum(np.rint(gaps / max(period, 1.0)), 1.0)
    period = float(np.median(gaps))
    spread = float(np.median(np.abs(gaps - period)))
    return round(period) if period >= 2 and spread <= _SPREAD * period else None


def sampled_period(stalls: Sequence[int], observed: Sequence[int]) -> int | None:
    """Return the period of stalls where only a share of all positions was observed.

    The answer is the shortest period for which most gaps are multiples of it, and most observed
    positions that it predicts are stalls.
    """
    at, seen = np.unique(np.asarray(stalls)), np.unique(np.asarray(observed))
    gaps = np.diff(at)
    if len(gaps) < 2:
        return None
    candidates = {
        round(float(gap) / times) for gap in np.unique(gaps) for times in range(1, _MAX_MISSED + 1)
    }
    for period in sorted(each for each in candidates if each > 1):
        fits = float(np.mean(gaps % period == 0))
        predicted = seen[(seen - at[0]) % period == 0]
        hits = float(np.mean(np.isin(predicted, at)))
        if fits >= _REGULAR and hits >= _REGULAR:
            return period
    return None
