"""What fixing ranks of a recorded job would save, by a replay at the pace of their peers."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ingero.contract.collective import POINT_TO_POINT_OPS
from ingero.core.blame.record_steps import RecordSteps
from ingero.core.blame.suspects import Suspect, WorkerSteps
from ingero.core.blame.whatif import build_chain, replay_chain
from ingero.core.collectives.columns import Collectives, Floats
from ingero.core.collectives.matching import match_collectives
from ingero.core.collectives.pairs.kernels import is_in_swap
from ingero.core.robust import nan_median

NEEDED_SHARE = 0.08  # a suspect whose fix saves less than this is only late because of others
MAX_SUSPECTS = 16  # whose fix is computed one by one, the slowest first
WHOLE_SHARE = 0.98  # of the records must be in complete collectives, or waits cannot be replayed


class Fixer:
    """Computes how much shorter a step is with the own time of some ranks at their peers' pace."""

    def __init__(
        self,
        collectives: Collectives,
        measured: RecordSteps,
        exact_ends: bool,
        steps: slice | None = None,
    ) -> None:
        self._steps = steps or slice(0, len(measured.workers.steps))
        rows = _common_rows(collectives, measured, self._steps)
        collectives = collectives.take(rows)
        self._collectives = collectives
        self._measured = replace(
            measured, row_step=measured.row_step[rows], row_place=measured.row_place[rows]
        )
        # Calls of one kernel begin together, so they have no order in which to replay them.
        has_chain = exact_ends and _is_whole(collectives) and not is_in_swap(collectives).any()
        self._chain = build_chain(collectives) if has_chain else None
        self._base = (
            replay_chain(self._chain, self._chain.gap_s).max(initial=0.0) if self._chain else 0.0
        )

    @property
    def can_replay(self) -> bool:
        """Whether the records are complete enough for a replay."""
        return self._chain is not None

    def needed(self, suspects: Sequence[Suspect]) -> list[Suspect]:
        """Return the suspects without whose fix the job stays slow.

        The others are only late because of them.
        """
        kept = list(suspects[:MAX_SUSPECTS])
        if len(kept) < 2:
            return kept
        best = self.saved(kept)
        kept = [
            s
            for s in kept
            if best - self.saved([o for o in kept if o is not s]) >= NEEDED_SHARE * best
        ]
        return kept or list(suspects[:1])

    def saved(self, suspects: Sequence[Suspect]) -> float:
        """Return the seconds that fixing these suspects together saves per step."""
        if not suspects:
            return 0.0
        return self._replayed(suspects) if self._chain else self._by_step(suspects)

    def _replayed(self, suspects: Sequence[Suspect]) -> float:
        """Replay with each gap of these ranks as long as the peers' at the same place and step."""
        assert self._chain is not None
        chosen = {s.worker for s in suspects}
        gap = self._chain.gap_s.copy()
        for worker in chosen:
            rows, pace = self._pace(worker, chosen)
            gap[rows] = np.fmin(gap[rows], pace)
        end = replay_chain(self._chain, gap).max(initial=0.0)
        replayed = np.unique(self._measured.row_step[self._chain.rows])
        return max(0.0, float(self._base - end) / max(1, int((replayed >= 0).sum())))

    def _pace(self, worker: int, without: set[int]) -> tuple[NDArray[np.intp], Floats]:
        """Return its rows of the chain, and the gaps of its peers at the same places and steps."""
        assert self._chain is not None
        workers, gaps = self._measured.workers, self._gaps()
        rows, place = gaps[worker]
        peers = [
            w for w in np.flatnonzero(workers.cohort == workers.cohort[worker]) if w not in without
        ]
        if not peers:
            return rows, np.full(len(rows), np.nan)
        table = np.full((len(peers), *place.max(axis=0, initial=0) + 1), np.nan)
        for i, peer in enumerate(peers):
            peer_rows, at = gaps[peer]
            inside = (at < table.shape[1:]).all(axis=1)
            table[i, at[inside, 0], at[inside, 1]] = self._chain.gap_s[peer_rows[inside]]
        return rows, nan_median(table, 0)[place[:, 0], place[:, 1]]

    def _gaps(self) -> list[tuple[NDArray[np.intp], NDArray[np.intp]]]:
        """Return for each worker its rows of the chain, and (step, place in the step) of each."""
        assert self._chain is not None
        measured = self._measured
        who = self._collectives.who[self._chain.rows]
        step, place = measured.row_step[self._chain.rows], measured.row_place[self._chain.rows]
        found = []
        for code in measured.ranks:
            rows = np.flatnonzero((who == code) & (step >= 0))
            found.append((rows, np.stack([step[rows], place[rows]], axis=1)))
        return found

    def _by_step(self, suspects: Sequence[Suspect]) -> float:
        """Compute the saving where entry times are unknown: the largest own time paces a step."""
        workers = self._measured.workers
        own = workers.own_s.copy()
        chosen = {s.worker for s in suspects}
        for worker in chosen:
            own[worker] = np.fmin(own[worker], pace_of(workers, worker, chosen))
        before, after = workers.own_s[:, self._steps], own[:, self._steps]
        known = np.isfinite(before).any(axis=0)
        saved = np.nanmax(before[:, known], axis=0) - np.nanmax(after[:, known], axis=0)
        return max(0.0, float(saved.mean())) if known.any() else 0.0


def _common_rows(collectives: Collectives, measured: RecordSteps, steps: slice) -> NDArray[np.intp]:
    """Return the rows of the steps in which all ranks left records; rings reach back unequally."""
    known = np.asarray(np.isfinite(measured.workers.own_s).all(axis=0), bool)
    common = steps.start + np.flatnonzero(known[steps])
    if len(common) == known.size:
        return np.arange(len(collectives))
    first, last = (common[0], common[-1]) if len(common) else (steps.start, steps.stop - 1)
    return np.flatnonzero((measured.row_step >= first) & (measured.row_step <= last))


def _is_whole(collectives: Collectives) -> bool:
    groups = match_collectives(collectives)
    is_edge = np.isin(
        collectives.op, [i for i, op in enumerate(collectives.ops) if op in POINT_TO_POINT_OPS]
    )
    needed = np.where(is_edge, 2, collectives.nranks)
    present = np.bincount(groups)[groups] if len(groups) else groups
    return bool(np.mean(present >= needed) >= WHOLE_SHARE) if len(groups) else False


def pace_of(workers: WorkerSteps, worker: int, without: set[int]) -> Floats:
    """Return the median own time per step of the workers with the same role."""
    peers = [
        w for w in np.flatnonzero(workers.cohort == workers.cohort[worker]) if w not in without
    ]
    return nan_median(workers.own_s[peers], 0) if peers else np.full(workers.own_s.shape[1], np.nan)
