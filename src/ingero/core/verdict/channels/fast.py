"""The fast channel: a clipped CUSUM of samples that finds lasting slowness.

It takes one sample of about a second at a time. This module also measures the effect: how far a
member is above its baseline, how certain that is, and whether it lasts.
"""

import numpy as np
from numpy.typing import NDArray

from ingero.core.robust import Column, Index
from ingero.core.verdict.policy import CLIP
from ingero.core.verdict.table import RECENT, RECENT_HISTORY, SUSPECT, CohortRows, MemberRows

CAP = 1.6  # channels stop at this many limits, so that recovery shows soon
MISSES = 7  # one sample in so many may be low in a slowdown that lasts
UNEVEN_LASTING = 16  # where batches differ: chance alone lets a third of all samples rise
MAX_LASTING = 28  # with the allowed misses, what 32 remembered samples can show
# Of its effect, in nearly every sample of a slowdown; more scales than this are always enough.
STEADY, STEADY_SCALES = 0.6, 6.0


def update_fast(rows: MemberRows, cohorts: CohortRows, members: Index, residual: Column) -> None:
    """Add one sample of each of these members, which all have a baseline."""
    excess = residual - rows.bias[members]
    z = np.clip(excess / rows.scale[members], -CLIP, CLIP)
    rows.cusum[members] = np.clip(
        rows.cusum[members] + z - rows.k[members], 0.0, CAP * rows.limit[members]
    )
    calm = members[rows.cusum[members] == 0.0]
    rows.rose_at[calm] = cohorts.step_samples[rows.cohort[calm]]
    rows.rose_frame[calm] = cohorts.frames[rows.cohort[calm]]
    rows.recent_excess[members, rows.samples[members] % RECENT] = excess
    rows.rises[members] = (rows.rises[members] << np.uint32(1)) | (z > rows.k[members])
    _count_far(rows, members, z >= CLIP)


def _count_far(rows: MemberRows, members: Index, is_far: NDArray[np.bool_]) -> None:
    """Count samples far out, and how often one follows another.

    Long batches and garbage collections cause them in every job. Members that are blamed are not
    counted.
    """
    ended = members[~is_far & (rows.far_run[members] > 0)]
    counted = ended[rows.state[ended] <= SUSPECT]
    rows.far[counted] += rows.far_run[counted]
    rows.far_again[counted] += rows.far_run[counted] - 1
    rows.far_run[ended] = 0
    rows.far_run[members[is_far]] += 1


def recent_effect(rows: MemberRows, members: Index) -> Column:
    """Return the median of the last residuals above the baseline; -inf until there are enough."""
    effect = np.median(rows.recent_excess[members], axis=1)
    return np.where(np.isnan(effect), -np.inf, effect)


def plain_effect(rows: MemberRows, members: Index) -> Column:
    """Return what all but one of the last residuals reach; -inf until there are enough.

    A hiccup of three samples moves a median of five, but not this.
    """
    recent = np.sort(rows.recent_excess[members], axis=1)
    return np.where(np.isnan(recent[:, -1]), -np.inf, recent[:, 1])


def margin_of_error(rows: MemberRows, members: Index) -> Column:
    """Return two standard errors of the mean of the last residuals."""
    correlation = np.clip(rows.correlation[members], 0.0, 0.9)
    errors = 2 * rows.scale[members] * np.sqrt((1 + correlation) / (1 - correlation) / RECENT)
    return np.asarray(errors, np.float64)


def is_persistent(rows: MemberRows, samples_between_alarms: Column) -> NDArray[np.bool_]:
    """Tell for which members the channel rose in nearly every sample of a slowdown.

    A slow node is slow with every batch, while long batches move from rank to rank.
    """
    needed = lasting_samples(rows, samples_between_alarms)
    found = _rose(rows, needed)
    often = _rose(rows, np.maximum(needed, UNEVEN_LASTING))
    asked = np.flatnonzero(found & ~often & (rows.state[: rows.size] == SUSPECT))
    if len(asked):
        found[asked] = _is_steady(rows, asked, needed[asked])
    return found


def _rose(rows: MemberRows, needed: Index) -> NDArray[np.bool_]:
    """Tell whose channel rose in so many of the last samples; one in MISSES may be low."""
    window = np.left_shift(1, needed + needed // MISSES) - 1
    return np.asarray(np.bitwise_count(rows.rises[: rows.size] & window) >= needed, bool)


def _is_steady(rows: MemberRows, members: Index, needed: Index) -> NDArray[np.bool_]:
    """Tell for which members the last samples are all about as slow.

    A hiccup on top of a few samples that are slower by chance raises a channel as far as a slow
    node does, but most of these samples are then far below the effect.
    """
    window = needed + needed // MISSES
    ago = np.arange(int(window.max()))
    places = (rows.samples[members][:, None] - 1 - ago) % RECENT_HISTORY
    excess = rows.latest[members[:, None], places] - rows.bias[members][:, None]
    effect = np.median(rows.recent_excess[members], axis=1)
    enough = np.minimum(STEADY * effect, STEADY_SCALES * rows.scale[members])
    is_slow = (excess >= enough[:, None]) & (ago < window[:, None])
    return np.asarray(is_slow.sum(axis=1) >= needed, bool)


def lasting_samples(rows: MemberRows, samples_between_alarms: Column) -> Index:
    """Return how many samples a slowdown must last to be more than the peers' occasional hiccups.

    Hiccups of the peers are modelled as a Markov chain: one begins with the share of far samples
    among all, and continues with the share of far samples that follow another. Few far samples
    prove little, so the second share starts at a tenth, with the weight of five samples.
    """
    size, cohort = rows.size, rows.cohort[: rows.size]

    def of_peers(column: Column) -> Column:
        own = column[:size]
        return np.asarray(np.bincount(cohort, own)[cohort] - own, np.float64)

    far, again = of_peers(rows.far), of_peers(rows.far_again)
    samples = of_peers(rows.samples.astype(np.float64))
    begin, go_on = (far + 1) / (samples + 1), (again + 0.5) / (far + 5)
    in_a_row = 1 + np.log(begin * samples_between_alarms) / -np.log(go_on)
    in_a_row = np.where(rows.is_uneven[:size], UNEVEN_LASTING, in_a_row)
    return np.clip(np.ceil(in_a_row), 1, MAX_LASTING).astype(np.intp)
