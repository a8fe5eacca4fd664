"""Whether stalls are what every host has now and then, and one rank has a few of them by chance.

Pauses of hosts come without a pattern. Whoever looks at many ranks, and at the stretch of each in
which it paused most, finds three or four pauses close together in some of them.
"""

import math

import numpy as np
from numpy.typing import NDArray

from ingero.core.blame.suspects import ALIKE, Suspect, WorkerSteps

LIKELY = 0.01  # that some rank of a healthy job has so many pauses in some stretch as long
UNSEEN = 0.5  # pauses that are assumed beside those that were seen, where few or none were


def are_by_chance(
    workers: WorkerSteps, excess: NDArray[np.float64], suspect: Suspect, begin: int, end: int
) -> bool:
    """Tell whether the stalls from one step to another are no more than the job's usual pauses.

    `excess` is the logarithm of own time over that of peers, as [worker, step]. Usual are pauses of
    all ranks outside of this stretch, if they last about as long. Steps in which the suspect stalls
    are left out: others may be late because of it.
    """
    if not suspect.stalls:
        return False
    lasted_s = workers.own_s * -np.expm1(-excess)
    known = np.isfinite(lasted_s)
    inside = slice(begin, end)
    stretch = max(int(known[suspect.worker, inside].sum()), 1)
    known[suspect.worker, inside] = False
    known[:, list(suspect.stalls)] = False
    pauses = int((lasted_s[known] >= ALIKE * suspect.excess_s).sum())
    expected = (pauses + UNSEEN) / max(int(known.sum()), 1) * stretch
    places = int(np.isfinite(lasted_s).sum()) / stretch  # ranks, and stretches of each
    return places * _at_least(len(suspect.stalls), expected) > LIKELY


def _at_least(count: int, expected: float) -> float:
    """Return how likely so many events or more are, if they come at random."""
    fewer = [math.exp(i * math.log(expected) - expected - math.lgamma(i + 1)) for i in range(count)]
    return max(0.0, 1.0 - sum(fewer))
