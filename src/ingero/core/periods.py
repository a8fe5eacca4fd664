"""The period of stalls, counted in steps."""

from collections.abc import Sequence

import numpy as np


def stall_period(steps: Sequence[int]) -> int | None:
    """Return the steps from one stall to the next, or None where these are irregular."""
    gaps = np.diff(np.asarray(steps))
    if len(gaps) < 2:
        return None
    middle = float(np.median(gaps))
    regular = float(np.mean(np.abs(gaps - middle) <= max(1.0, 0.1 * middle)))
    return round(middle) if middle > 1 and regular >= 0.6 else None
