"""What a step of one rank is, and which step and place each of its collectives has."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ingero.core.collectives.columns import Ints, Mask
from ingero.core.collectives.step_kinds import Detail, Kind


@dataclass(frozen=True, slots=True)
class StepPattern:
    """The calls of a step in order; `places` has the kind and its how-manieth call in the step.

    `anchor` is a place with a kind that comes once, or the one that the kinds of `after` follow.
    Where all calls are alike, it is the first one after a pause. `needed` tells which places every
    whole step has; light calls may be missing. Where gradients are fused differently in each step,
    only their `total_bytes` repeat: places count back from the last call of a step then.
    """

    detail: Detail
    places: tuple[tuple[Kind, int], ...]
    needed: tuple[bool, ...]
    anchor: int
    fit: float  # share of the turns that held the pattern where it was found
    after: tuple[Kind, ...] = ()
    pause_ns: int = 0  # 0 where kinds tell the anchor
    total_bytes: int = 0

    def __len__(self) -> int:
        return len(self.places)


@dataclass(frozen=True, slots=True)
class StepCut:
    """Step and place of each row, -1 outside; and per step the identity of its anchor.

    Steps are counted from 0, the first anchor. The first and last may lack rows.
    """

    step: Ints
    place: Ints
    comm: NDArray[np.uint64]  # of each step
    seq: Ints  # of each step, -1 where sends and receives are all there is
    whole: Mask  # of each step: every needed place is there once, and no call too many

    def __len__(self) -> int:
        return len(self.comm)
