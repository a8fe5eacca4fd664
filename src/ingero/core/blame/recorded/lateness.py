"""How late each rank comes to the collectives of a step.

All ranks leave a collective together, so a rank that comes late to the next one is late by its own
doing. Where collectives overlap compute, ranks work while they wait: one delay shows again at later
places of the step, so the largest lateness of the step counts. Where compute follows collectives,
each place adds its own delay, so their sum counts. Which of both holds is measured in the scatter
of the job itself.

Where ranks meet in different groups, a rank that waited in one group comes late to the next. Only
the slow rank is late in all of its groups, so the least of them counts. That holds where
collectives overlap compute; elsewhere own time is exact.
"""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from ingero.core.blame.record_steps import RecordSteps
from ingero.core.blame.suspects import WorkerSteps
from ingero.core.collectives.arrivals import Arrivals
from ingero.core.collectives.columns import Collectives, Floats
from ingero.core.collectives.own_time import idle_before_enqueue

MIN_KNOWN = 0.5  # of the cells must have an arrival
MIN_PAIRS = 64  # neighbouring places, before their dependence is believed
RARELY = 50  # steps between two flags; calls that are rarer end a checkpoint or an evaluation
FAR = 4  # places apart, at least: what these have in common is not carried
OVERLAP = 0.15  # of the scatter at one place is found again at the next; without overlap it is none

CLEARLY = 0.4  # below, the scatter of whole steps may look like overlap


@dataclass(frozen=True, slots=True)
class PlaceTables:
    """Seconds as [worker, step, place]: GPU and host against the median of the other members.

    `advance_s` is what the last member adds, and `idle_s` how long the GPU had waited for its host
    at most. `is_pair` and `comm` are [worker, place]: a send or receive, and the communicator.
    """

    start_s: Floats
    enqueue_s: Floats
    advance_s: Floats
    idle_s: Floats
    is_pair: NDArray[np.bool_]
    comm: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Lateness(PlaceTables):
    """The lateness of ranks that the others wait for.

    `new_s` is [worker, step]: the lateness that arose in the step, each delay counted once.
    `carried` is the share of a delay that shows again at the next place. `group` is [worker,
    place]: the members that a rank meets there, as a number; None where all meet everywhere.
    `carried_at` and `adds` are [worker, place], too: what is carried in that group, and whether
    each of its places adds its own delay.
    """

    new_s: Floats
    carried: float
    group: NDArray[np.intp] | None = None
    carried_at: Floats | None = None
    adds: NDArray[np.bool_] | None = None

    @property
    def overlaps_in_groups(self) -> bool:
        """Whether ranks meet in groups, and work while they wait there."""
        return self.group is not None and self.carried >= OVERLAP


def measure_places(
    collectives: Collectives, measured: RecordSteps, arrivals: Arrivals
) -> PlaceTables:
    """Return how late all ranks are at each place of each step, NaN where that is unknown.

    Flags before a step, where all ranks meet now and then, are a place of their own: the last.
    """
    rows, flags = _placed_rows(measured), _flags(collectives, measured)
    places = int(measured.row_place[rows].max(initial=0)) + 1
    shape = (len(measured.ranks), len(measured.workers.steps), places + bool(len(flags)))
    at = _cells(collectives, measured, rows)
    worker = np.searchsorted(np.array(measured.ranks), collectives.who[flags])
    tables = []
    idle_s = idle_before_enqueue(collectives)
    late = (arrivals.start_late_s, arrivals.enqueue_late_s, arrivals.advance_s)
    for column in (*late, idle_s):
        table = np.full(shape, np.nan)
        table[at] = column[rows]
        if len(flags):
            table[worker, measured.flag_step[flags], places] = column[flags]
        tables.append(table)
    is_pair = np.zeros((shape[0], shape[2]), bool)
    is_pair[at[0], at[2]] = collectives.peer[rows] >= 0
    comm = np.full(is_pair.shape, -1)
    comm[at[0], at[2]] = np.unique(collectives.comm[rows], return_inverse=True)[1]
    return PlaceTables(tables[0], tables[1], tables[2], tables[3], is_pair, comm)


def measure_lateness(
    collectives: Collectives,
    measured: RecordSteps,
    places: PlaceTables,
    in_any_group: bool = False,
) -> Lateness | None:
    """Return the lateness of all ranks; None where it does not tell who is to blame.

    With `in_any_group` it is returned for groups whose collectives overlap no compute, too.
    """
    rows = _placed_rows(measured)
    if not len(rows) or (collectives.peer[rows] >= 0).any():
        return None
    start = places.start_s
    placed = int(measured.row_place[rows].max()) + 1
    _, step, place = _cells(collectives, measured, rows)
    has_call = np.zeros((start.shape[1], placed), bool)  # some steps may have fewer than others
    has_call[step, place] = True
    if np.isfinite(start[:, :, :placed]).sum() < MIN_KNOWN * len(start) * has_call.sum():
        return None
    group = carried_at = adds = None
    if _all_share(collectives, rows, len(measured.ranks)):
        carried = _carried_share(start[:, :, :placed])
    else:
        group, op = _meetings(collectives, measured, rows, (len(start), start.shape[2]))
        carried_at = _carried_in_groups(start, group, op)
        carried, adds = float(carried_at.min(initial=1.0)), carried_at < OVERLAP
    if group is not None and carried < OVERLAP and not in_any_group:
        return None
    known = np.isfinite(start).any(axis=2)
    once = np.nansum if carried < OVERLAP else _largest
    new = once(start, axis=2) if group is None else _new_in_groups(start, group, adds)
    new = np.where(known, new, np.nan)
    shared = {name: getattr(places, name) for name in PlaceTables.__slots__}
    return Lateness(
        **shared, new_s=new, carried=carried, group=group, carried_at=carried_at, adds=adds
    )


def _new_in_groups(
    start: Floats, group: NDArray[np.intp], adds: NDArray[np.bool_] | None
) -> Floats:
    """Return the least of all groups; at flags all ranks meet, after the groups of a step."""
    is_flag = (group < 0).all(axis=0)
    new: Floats = np.fmax(
        least_of_groups(start, group, adds), _largest(start[:, :, is_flag], axis=2)
    )
    return new


def _flags(collectives: Collectives, measured: RecordSteps) -> NDArray[np.intp]:
    """Return the flags of all ranks, where they come often enough to belong to the job's steps."""
    is_wide = collectives.nranks >= len(measured.ranks)
    flags = np.flatnonzero((measured.flag_step >= 0) & is_wide)
    steps = len(np.unique(measured.flag_step[flags]))
    return flags if steps * RARELY >= len(measured.workers.steps) else flags[:0]


def _placed_rows(measured: RecordSteps) -> NDArray[np.intp]:
    return np.flatnonzero((measured.row_step >= 0) & (measured.row_place >= 0))


def _cells(
    collectives: Collectives, measured: RecordSteps, rows: NDArray[np.intp]
) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.intp]]:
    worker = np.searchsorted(np.array(measured.ranks), collectives.who[rows])
    return worker, measured.row_step[rows], measured.row_place[rows]


def least_of_groups(
    late: Floats, group: NDArray[np.intp], adds: NDArray[np.bool_] | None = None
) -> Floats:
    """Return [worker, step]: the largest lateness within each group, and the least of these.

    Where `adds` says so, it is the sum within a group instead. Ranks that come early wait for
    others; how early says nothing about them.
    """
    result: Floats = np.full(late.shape[:2], np.inf)
    for worker, of_place in enumerate(group):
        for code in np.unique(of_place[of_place >= 0]):
            mine = late[worker][:, of_place == code]
            largest = _largest(mine, axis=1)
            known = np.isfinite(largest)
            if adds is not None and adds[worker][of_place == code].all():
                largest = np.nansum(mine, axis=1)
            result[worker, known] = np.minimum(result[worker], largest)[known]
    return np.where(np.isfinite(result), np.maximum(result, 0.0), 0.0)


def _meetings(
    collectives: Collectives,
    measured: RecordSteps,
    rows: NDArray[np.intp],
    shape: tuple[int, int],
) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return as [worker, place] whom a worker meets, equal for equal members, and for what.

    Both are -1 where it meets nobody.
    """
    worker, _, place = _cells(collectives, measured, rows)
    comms, which = np.unique(collectives.comm[rows], return_inverse=True)
    sets = [frozenset(np.unique(worker[which == i]).tolist()) for i in range(len(comms))]
    codes = {members: code for code, members in enumerate(dict.fromkeys(sets))}
    group, op = np.full(shape, -1, np.intp), np.full(shape, -1, np.intp)
    group[worker, place] = np.array([codes[members] for members in sets])[which]
    op[worker, place] = collectives.op[rows]
    return group, op


def _largest(late: Floats, axis: int) -> Floats:
    largest: Floats = np.where(np.isfinite(late), late, -np.inf).max(axis=axis, initial=-np.inf)
    return largest


def without_overlap(lateness: Lateness) -> Lateness | None:
    """Return the lateness if each place adds its own delay; None where that is out of question."""
    if lateness.group is not None:
        adds = None if lateness.carried_at is None else lateness.carried_at < CLEARLY
        if adds is None or lateness.adds is None or (adds == lateness.adds).all():
            return None
        new = np.where(
            np.isfinite(lateness.new_s),
            _new_in_groups(lateness.start_s, lateness.group, adds),
            np.nan,
        )
        return replace(lateness, new_s=new, carried=0.0, adds=adds)
    if not OVERLAP <= lateness.carried < CLEARLY:
        return None
    total = np.where(np.isfinite(lateness.new_s), np.nansum(lateness.start_s, axis=2), np.nan)
    return replace(lateness, new_s=total, carried=0.0)


def as_own_time(lateness: Lateness, workers: WorkerSteps) -> WorkerSteps:
    """Return own times that differ by lateness alone, on top of the usual length of a step."""
    usual = float(np.nanmedian(workers.period_s))
    own = np.maximum(usual + lateness.new_s, 0.1 * usual)
    return replace(workers, own_s=np.where(np.isfinite(workers.own_s), own, np.nan))


def _all_share(collectives: Collectives, rows: NDArray[np.intp], ranks: int) -> bool:
    pairs = np.unique(
        np.stack([collectives.comm[rows].view(np.int64), collectives.who[rows]], 1), axis=0
    )
    return bool((np.unique(pairs[:, 0], return_counts=True)[1] == ranks).all())


def _carried_share(start: Floats) -> float:
    """Return how much of the lateness at one place is found again at the next, between 0 and 1.

    Lasting differences between ranks, and faults that begin, say nothing about that: each rank is
    compared with itself one step before.
    """
    return _found_again([np.diff(start, axis=1).reshape(-1, start.shape[2])])


def _carried_in_groups(start: Floats, group: NDArray[np.intp], op: NDArray[np.intp]) -> Floats:
    """Return the same for groups as [worker, place], 1 where a worker meets nobody.

    A kind of groups carries what the call carries that shows most of it: gathers that are enqueued
    ahead hardly show what the scatters beside them do.
    """
    scatter = np.diff(start, axis=1)
    found: dict[tuple[tuple[int, ...], int], list[Floats]] = {}
    kind_of: dict[tuple[int, int], tuple[int, ...]] = {}
    for worker, of_place in enumerate(group):
        for code in np.unique(of_place[of_place >= 0]).tolist():
            kind = kind_of[worker, code] = tuple(np.flatnonzero(of_place == code).tolist())
            for call in np.unique(op[worker][of_place == code]).tolist():
                mine = scatter[worker][:, (of_place == code) & (op[worker] == call)]
                found.setdefault((kind, call), []).append(mine)
    most: dict[tuple[int, ...], float] = {}
    for (kind, _), parts in found.items():
        most[kind] = max(most.get(kind, 0.0), _found_again(parts))
    carried = np.ones(group.shape)
    for (worker, code), kind in kind_of.items():
        carried[worker, group[worker] == code] = most[kind]
    return carried


def _found_again(parts: list[Floats]) -> float:
    """Return the share of the scatter at one place that is found at the next one.

    `parts` are tables as [sample, place]. A rank that is slower in a whole step is late at all its
    places alike. What places far apart have in common is therefore taken off.
    """
    table = np.concatenate(parts) if parts else np.empty((0, 0))
    places = table.shape[1]
    known = np.abs(table[np.isfinite(table)])
    if not len(known):
        return 0.0
    limit = 3 * max(float(np.quantile(known, 0.75)), 1e-9)  # hiccups weigh no more
    table = np.clip(table, -limit, limit)
    near, pairs = _products(table, range(1, min(2, places)))
    if pairs < MIN_PAIRS:
        return 0.0
    power = _products(table, range(1))[0]
    far = _products(table, range(max(FAR, places // 2), places))[0] if places > FAR else 0.0
    far = min(max(far, 0.0), 0.99 * power)
    return float(np.clip((near - far) / (power - far), 0.0, 1.0)) if power > 0 else 0.0


def _products(table: Floats, apart: range) -> tuple[float, int]:
    """Return the mean product of places so many apart, and the number of pairs."""
    places = table.shape[1]
    products = [(table[:, : places - n] * table[:, n:]).ravel() for n in apart]
    known = np.concatenate(products) if products else np.empty(0)
    known = known[np.isfinite(known)]
    return (float(known.mean()) if len(known) else 0.0), len(known)
