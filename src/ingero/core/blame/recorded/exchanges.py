"""Ranks that are late together, because they exchange data by sends and receives.

Such an exchange starts on the GPUs of all members when the last one is ready. The wait is then not
inside the recorded operations: all members seem to work longer, and none of them can be named.
"""

import numpy as np

from ingero.core.blame.recorded.spells import Spell
from ingero.core.blame.recorded_job import RecordedJob
from ingero.core.robust import nan_median

ALIKE = 0.5  # of the excess of a rank: a member with as much is late together with it


def is_late_with_others(job: RecordedJob, spell: Spell) -> bool:
    """Whether most members of an exchange that a worker takes part in are as late as it is."""
    c, ranks = job.collectives, np.array(job.measured.ranks)
    mine = (c.who == ranks[spell.worker]) & (c.peer >= 0)
    own = job.measured.workers.own_s
    inside = spell.columns(own.shape[1])
    for comm in np.unique(c.comm[mine]):
        group = np.searchsorted(ranks, np.unique(c.who[(c.comm == comm) & (c.peer >= 0)]))
        others = np.setdiff1d(np.arange(len(ranks)), group)
        if len(group) < 3 or len(others) < 2:
            continue
        usual = nan_median(own[others][:, inside].reshape(1, -1), 1)[0]
        excess = nan_median(own[:, inside], 1) - usual
        alike = excess[group] >= ALIKE * excess[spell.worker]
        if excess[spell.worker] > 0 and alike.sum() > len(group) / 2:
            return True
    return False
