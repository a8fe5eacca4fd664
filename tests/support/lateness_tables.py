"""Lateness of ranks as tables that a test writes down: [rank, step, place]."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ingero.core.blame.recorded.lateness import Lateness
from ingero.core.blame.recorded.spells import Spell
from ingero.core.blame.suspects import Suspect

Floats = NDArray[np.float64]
SUSPECT = Suspect(1, 0.1, 0.01, 0.2, 0.9, 1.0, None, (), 3)


def lateness(start: Floats, enqueue: Floats | None = None, carried: float = 0.0) -> Lateness:
    """Return the lateness of [rank, step, place]."""
    hosts = np.zeros_like(start) if enqueue is None else enqueue
    order = np.sort(start, axis=0)
    advance = np.where(start == order[-1], order[-1] - order[-2], 0.0)
    return Lateness(
        start,
        hosts,
        advance,
        np.ones_like(start),
        no_pairs(start),
        groups(start),
        start.sum(axis=2),
        carried,
    )


def no_pairs(start: Floats) -> NDArray[np.bool_]:
    return np.zeros((len(start), start.shape[2]), bool)


def groups(start: Floats) -> NDArray[np.int64]:
    """Each place has a communicator of its own."""
    return np.tile(np.arange(start.shape[2]), (len(start), 1))


def spell(begin: int = 0, end: int = 10, worker: int = 1) -> Spell:
    """Return the steps in which a worker is suspected."""
    return Spell(replace(SUSPECT, worker=worker), begin, end)
