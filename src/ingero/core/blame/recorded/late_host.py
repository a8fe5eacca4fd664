"""A host that is late because it launches more work, not because it began late.

A GPU waits for its host only while it has nothing to do: at the beginning of a step. How late the
host was then is what it costs; later, its calls wait in a queue. A host that sleeps is as late at
the first collective as at the last. One that launches the extra work of a slow GPU falls behind
step by step: its lateness grows with the time it has been launching, from nothing.
"""

import numpy as np

from ingero.core.blame.record_steps import RecordSteps
from ingero.core.blame.recorded.lateness import PlaceTables
from ingero.core.blame.recorded.spells import Spell
from ingero.core.collectives.columns import Collectives, Floats
from ingero.core.robust import MAD_TO_SIGMA, median_and_mad

AHEAD = 2.0  # times the lateness of the GPU that its calls wait in the queue
EARLY = 0.5  # of the lateness of the GPU: a host that began later than that is the reason
SIGMAS = 3.0
MEDIAN_ERROR = 1.2533  # a median scatters this much more than a mean
MIN_STEPS = 16


def launches_more(
    collectives: Collectives, measured: RecordSteps, places: PlaceTables, spell: Spell
) -> bool:
    """Whether a late host began its steps in time and is far ahead of its GPU all the same."""
    part = slice(spell.begin, spell.end)
    since_s, queue_s = _host_times(collectives, measured, spell)
    late_s, start_s = (table[spell.worker, part] for table in (places.enqueue_s, places.start_s))
    late_s, start_s = late_s[:, : since_s.shape[1]], start_s[:, : since_s.shape[1]]
    known = np.isfinite(since_s) & np.isfinite(late_s)
    whole = known.sum(axis=1) == known.any(axis=0).sum()
    if whole.sum() < MIN_STEPS or known.any(axis=0).sum() < 2:
        return False
    used = known.any(axis=0)
    since_s, late_s = since_s[whole][:, used], late_s[whole][:, used]
    delay_s = float(np.median(start_s[whole][:, used], axis=0).max())
    first = int(np.median(since_s, axis=0).argmin())
    if np.median(since_s[:, first]) <= 0:  # the host does not wait for its GPU between steps
        return False
    if np.median(queue_s[whole][:, used][:, first]) < AHEAD * delay_s:
        return False
    began_s = _at_begin(since_s, late_s)
    centre, mad = median_and_mad(began_s)
    error = SIGMAS * MEDIAN_ERROR * MAD_TO_SIGMA * mad / np.sqrt(len(began_s))
    return bool(centre + error < EARLY * delay_s)


def _at_begin(since_s: Floats, late_s: Floats) -> Floats:
    """Return how late the host was at the beginning of each step, by a straight line."""
    middle, level = since_s.mean(axis=1), late_s.mean(axis=1)
    apart = since_s - middle[:, None]
    power = np.maximum((apart**2).sum(axis=1), 1e-18)
    slope = (apart * late_s).sum(axis=1) / power
    begin: Floats = level - slope * middle
    return begin


def _host_times(
    collectives: Collectives, measured: RecordSteps, spell: Spell
) -> tuple[Floats, Floats]:
    """Return as [step, place]: enqueue after the end of the step before, and time in the queue."""
    step, place = measured.row_step, measured.row_place
    mine = (collectives.who == measured.ranks[spell.worker]) & (step >= 0) & (place >= 0)
    rows = np.flatnonzero(mine & (step >= spell.begin - 1) & (step < spell.end))
    at = step[rows] - spell.begin + 1
    begin = int(collectives.end_ns[rows].min()) if len(rows) else 0
    shape = (spell.end - spell.begin + 1, int(place[rows].max(initial=0)) + 1)
    enqueue, end, queue = (np.full(shape, np.nan) for _ in range(3))
    enqueue[at, place[rows]] = (collectives.start_ns[rows] - begin) / 1e9
    end[at, place[rows]] = (collectives.end_ns[rows] - begin) / 1e9
    queue[at, place[rows]] = (collectives.entry_ns - collectives.start_ns)[rows] / 1e9
    before = np.where(np.isfinite(end), end, -np.inf).max(axis=1)
    before = np.where(np.isfinite(before), before, np.nan)
    return enqueue[1:] - before[:-1, None], queue[1:]
