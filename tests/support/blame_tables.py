"""Suspects, spells and lateness of recorded jobs, as tests write them down."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from ingero.contract.verdict import CauseClass
from ingero.core.blame.recorded.blamed import Blamed
from ingero.core.blame.recorded.lateness import Lateness
from ingero.core.blame.recorded.loss import Loss
from ingero.core.blame.recorded.spells import Spell
from ingero.core.blame.recorded.step_calls import StepCalls
from ingero.core.blame.suspects import (
    Suspect,
    WorkerSteps,
)

NOT_KNOWN = math.nan


def suspect(worker: int = 0, **given: Any) -> Suspect:
    fields: dict[str, Any] = {
        "excess": 0.1, "error": 0.01, "excess_s": 0.2, "confidence": 0.9, "named_share": 1.0,
        "stall_period": None, "stalls": (), "peers": 3,
    }  # fmt: skip
    return Suspect(worker=worker, **{**fields, **given})


def spell(begin: int, end: int, worker: int = 0, **given: Any) -> Spell:
    return Spell(suspect(worker, **given), begin, end)


def blamed(begin: int, end: int, charge_s: float, worker: int = 0) -> Blamed:
    loss = Loss(1.0, 0.9, 0.1, 0.01)
    return Blamed(spell(begin, end, worker), CauseClass.COMPUTE, charge_s, loss)


def lateness(start: Any, *, carried: float = 0.0, group: Any = None, **given: Any) -> Lateness:
    """Return lateness as [worker, step, place]."""
    start = np.array(start, float)
    tables = {
        "enqueue_s": np.zeros_like(start), "advance_s": start, "idle_s": np.ones_like(start),
        "is_pair": np.zeros((len(start), start.shape[2]), bool),
        "comm": np.zeros((len(start), start.shape[2]), np.int64), **given,
    }  # fmt: skip
    new_s = np.nan_to_num(start).max(axis=2)
    return Lateness(start_s=start, new_s=new_s, carried=carried, group=group, **tables)


def steps_of(own: Any, period: Any, cohort: Sequence[int] | None = None) -> WorkerSteps:
    own = np.array(own, float)
    return WorkerSteps(
        own, np.array(period, float),
        np.array([0] * len(own) if cohort is None else cohort, np.intp),
        tuple(range(own.shape[1])),
    )  # fmt: skip


def step_calls(start: Any, end: Any, **given: Any) -> StepCalls:
    """Return calls as [worker, step, place] that all workers share, on a stream for each place."""
    start, end = np.array(start, float), np.array(end, float)
    workers, _, places = start.shape
    shared = np.tile(np.arange(places), (workers, 1))
    usual = {"enqueue": start, "wait": np.zeros_like(start), "slot": shared, "stream": shared}
    tables: dict[str, Any] = {**usual, **given}
    return StepCalls(start=start, end=end, **tables)
