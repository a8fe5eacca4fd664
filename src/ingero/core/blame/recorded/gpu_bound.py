"""A rank whose GPU alone is behind, in a job whose other ranks wait for their hosts.

Where launches take as long as compute, arrivals scatter with the hosts, and a slow GPU is hardly
later than the slowest host. It is still apart: the kernels of the others start as soon as they are
enqueued, and those of the slow GPU wait in its queue.
"""

import numpy as np

from ingero.core.blame.recorded.lateness import Lateness
from ingero.core.blame.recorded.loss import COSTLY, find_rise
from ingero.core.blame.recorded.spells import Spell
from ingero.core.blame.suspects import Suspect
from ingero.core.collectives.columns import Floats
from ingero.core.robust import MAD_TO_SIGMA, median_and_mad, nan_median

SIGMAS = 6.0  # of the other ranks' queues
SPREAD_FLOOR = 0.0005  # of the step: queues do not agree better than this
CHARGED = 2.0  # times as much as the median of the others: what it adds as the last
MIN_STEPS = 100


def find_gpu_bound(lateness: Lateness, period_s: Floats) -> Spell | None:
    """Return the only rank with a queue, over the steps since the job became slower."""
    begin, end = find_rise(period_s) or 0, len(period_s)
    if end - begin < MIN_STEPS or len(lateness.start_s) < 4:
        return None
    step_s = float(np.nanmedian(period_s[begin:end]))
    start, enqueue = (t[:, begin:end, 0] for t in (lateness.start_s, lateness.enqueue_s))
    if not (np.isfinite(start - enqueue).sum(axis=1) >= MIN_STEPS).all():
        return None
    behind = nan_median(start - enqueue, 1)
    late = nan_median(start, 1)
    added = np.nanmean(lateness.advance_s[:, begin:end, 0], axis=1)
    worker = int(np.nanargmax(behind))
    others = np.arange(len(behind)) != worker
    centre, mad = median_and_mad(behind[others])
    sigma = max(MAD_TO_SIGMA * mad, SPREAD_FLOOR * step_s)
    height = float(behind[worker]) - centre
    if height < SIGMAS * sigma or late[worker] < COSTLY * step_s:
        return None
    if added[worker] < CHARGED * float(np.median(added[others])):
        return None
    suspect = Suspect(
        worker=worker,
        excess=float(late[worker]) / step_s,
        error=sigma / step_s,
        excess_s=float(late[worker]),
        confidence=0.7,
        named_share=float(np.mean(start[worker] > 0)),
        stall_period=None,
        stalls=(),
        peers=len(behind) - 1,
    )
    return Spell(suspect, begin, end)
