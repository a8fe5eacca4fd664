"""Who comes late where the steps of a job grew.

Where transfers travel beside the compute, or collectives hide all of it, own times vary by more
than a slow rank adds to them. How much later the GPU of a member begins than its peers', at the
place of the step that the job waits at most, is far steadier, and so is how long the job waits for
this member alone. Whoever is behind longer steps is later than before by a good part of what they
grew by, and nobody else is: where a whole group is late, one of its members holds up the others,
and own times tell which.
"""

import numpy as np

from ingero.core.robust import Column, Index
from ingero.core.verdict.channels.advance import FLOOR, QUEUE_STEPS
from ingero.core.verdict.members import MemberRegistry
from ingero.core.verdict.policy import CLIP
from ingero.core.verdict.table import FRAMES, RECENT, MemberRows

MIN_STEPS = 6  # sent whole, since the steps grew
ENOUGH = 5.0  # standard errors of the mean lateness of a member
AHEAD = 3.0  # standard errors before any other member
ALIKE = 0.5  # of its lateness: where another member has so much, a whole group of ranks is late
LATELY = 0.5  # of its lateness: so much must be left in the last steps
EXPLAINED = 0.25  # of what the step grew by: the lateness of the member must reach it
START, ALONE, MEAN = 0, 4, 5  # columns of `usual_late_s`
TO_SIGMA = 1.2533  # makes a mean distance comparable to a standard deviation for normal scores


def find_late_member(
    registry: MemberRegistry, members: Index, length: int, grown_s: float
) -> int | None:
    """Return the member of a job that comes late since its steps grew, and no other as late.

    The steps grew by `grown_s` seconds, `length` samples ago.
    """
    rows, cohorts = registry.rows, registry.cohorts
    since = cohorts.step_samples[rows.cohort[members]] - length
    for column in (START, ALONE, MEAN):
        best = _latest(rows, members, _since(rows, members, since, column), column, grown_s)
        if best is not None:
            return best
    return None


def clearest_lateness(rows: MemberRows, index: int, since: int) -> tuple[float, float]:
    """Return by how much later a member comes since a sample of steps, in seconds, and the error.

    Of the kinds of lateness the one that shows it best counts. Both are NaN where none is known.
    """
    members, found = np.array([index]), [(np.nan, np.nan)]
    for column in (START, ALONE, MEAN):
        late_s = _since(rows, members, np.array([since]), column)
        if np.isfinite(late_s).sum() > 1 and np.isfinite(rows.usual_late_s[index, column]):
            late_s, _, error_s = _grown(rows, members, late_s, column)
            found.append((float(np.nanmedian(late_s)), float(error_s[0])))
    return max(found, key=lambda each: np.nan_to_num(each[0] / each[1], nan=-np.inf))


def _since(rows: MemberRows, members: Index, since: Index, column: int) -> Column:
    """Return a kind of lateness as [member, step], NaN before that sample of steps."""
    late_s = {START: rows.start_late_s, ALONE: rows.alone_s, MEAN: rows.mean_late_s}[column][
        members
    ]
    known = np.isfinite(rows.start_late_s[members]) & (rows.late_at[members] >= since[:, None])
    if column == MEAN:  # it is measured once in a while, and steps between repeat it
        known &= late_s != np.roll(late_s, 1, axis=1)
    return np.where(known, late_s, np.nan)


def _grown(
    rows: MemberRows, members: Index, late_s: Column, column: int
) -> tuple[Column, Column, Column]:
    """Return lateness beyond what is usual, its mean without far steps, and the error of that."""
    late_s = late_s - rows.usual_late_s[members, column][:, None]
    noise_s = TO_SIGMA * rows.late_noise_s[members, column]
    noise_s = np.maximum(noise_s, FLOOR * np.nan_to_num(rows.span_s[members]))
    z = np.clip(late_s / noise_s[:, None], -CLIP, CLIP)
    counts = np.isfinite(z).sum(axis=1)
    # A single hiccup makes the steps differ, and then their mean is less certain.
    spread = np.maximum(np.nanstd(z, axis=1, ddof=1), 1.0)
    learned = np.clip(rows.late_frames[members] - counts, 1, QUEUE_STEPS)
    error_s = np.sqrt(spread**2 / counts + 1 / learned) * noise_s
    return late_s, np.nanmean(z, axis=1) * noise_s, error_s


def _latest(
    rows: MemberRows, members: Index, late_s: Column, column: int, grown_s: float
) -> int | None:
    """Return which of these members is later than usual by enough, and clearly the latest."""
    counts = np.isfinite(late_s).sum(axis=1)
    is_known = (counts > 1) & np.isfinite(rows.usual_late_s[members, column])
    members, late_s, counts = members[is_known], late_s[is_known], counts[is_known]
    if len(members) < 2:
        return None
    late_s, mean_s, error_s = _grown(rows, members, late_s, column)
    best = int(mean_s.argmax())
    is_clear = mean_s[best] - mean_s >= AHEAD * np.hypot(error_s[best], error_s)
    is_clear &= mean_s < ALIKE * mean_s[best]
    is_clear[best] = counts[best] >= MIN_STEPS and mean_s[best] >= ENOUGH * error_s[best]
    if not is_clear.all():
        return None
    newest = (rows.late_frames[members[best]] - 1 - np.arange(FRAMES)) % FRAMES
    shown = late_s[best, newest][np.isfinite(late_s[best, newest])]
    middle_s = float(np.median(shown))
    is_over = float(np.median(shown[:RECENT])) < LATELY * middle_s
    return None if is_over or middle_s < EXPLAINED * grown_s else int(members[best])
