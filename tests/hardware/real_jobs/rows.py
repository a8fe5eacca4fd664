"""Compares what Fleet said with what the job measured itself: one row per phase of a run."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.hardware.real_jobs.plan import CALM, CLASSES, PERIODIC, Phase
from tests.hardware.real_jobs.steps import Steps

SETTLE_S = 1.0  # after a change, the step that it falls into
CALM_S = 25.0  # of the calm phases on both sides of a fault
BLOCK_S = 2.0
LEAST_STEPS = 20
NAMED_WITHIN_S = 15.0
COSTLY, COSTLESS = 0.05, 0.015  # loss that must be named, and loss below which nobody is
LOSS_SHARE, LOSS_POINTS = 0.25, 0.01  # a said loss may be off by the larger of the two
FAULT_LEAST_S, NAMED_FOR_S = 12.5, 6.0  # a fault may end when its loss has settled
NAMED = "straggler"
EVENTS = ("fleet_event", "not_sure")
Row = dict[str, Any]


@dataclass(frozen=True)
class Passed:
    """A phase that is over, with its Unix times."""

    phase: Phase
    began_s: float
    ended_s: float


@dataclass(frozen=True)
class Heard:
    """The verdicts that Fleet listed at one time."""

    at_s: float
    verdicts: list[dict[str, Any]]


@dataclass(frozen=True)
class Run:
    """One job from its start to its end."""

    mode: str
    passed: list[Passed]
    heard: list[Heard]
    steps: list[Steps]


def rows_of(run: Run) -> list[dict[str, Any]]:
    """Return one row per phase, without the facts that all rows of a run share."""
    return [_row(run, index) for index in range(len(run.passed))]


def _row(run: Run, index: int) -> dict[str, Any]:
    passed = run.passed[index]
    phase, rank = passed.phase, passed.phase.fault.get("rank")
    began_s = _seen_s(run, passed)
    steps = [each.between(began_s + SETTLE_S, passed.ended_s) for each in run.steps]
    row = {
        "job": run.mode,
        "phase": phase.name,
        "kind": phase.kind,
        "fault": phase.fault,
        "seconds": round(passed.ended_s - passed.began_s, 1),
        "steps": int(max((len(each) for each in steps), default=0)),
        "step_ms_median": _over_ranks(steps, np.median),
        "step_ms_mean": _over_ranks(steps, np.mean),
        "others": _others(run, index),
        "events": _events(run, passed),
        "pace_ms": _pace(run.steps[0], passed) if run.steps else [],
    }
    if phase.kind == CALM:
        return row | {"right": not row["others"]}
    row |= _truth(run, index, steps) | _said(run.heard, began_s, passed.ended_s, rank)
    row |= _host_cost(run, index, began_s)
    return row | {"right": is_right(row), "remarks": remarks(row)}


def is_settled(phase: Phase, heard: list[Heard]) -> bool:
    """Whether the slowed rank of a phase has been named for long enough to know its loss."""
    rank = phase.fault.get("rank")
    if rank is None or not heard:
        return False
    now_s = time.time()
    named_s = next(
        (
            each.at_s
            for each in heard
            if any(v["state"] == NAMED and v.get("rank") == rank for v in each.verdicts)
        ),
        now_s,
    )
    return now_s - heard[0].at_s >= FAULT_LEAST_S and now_s - named_s >= NAMED_FOR_S


def _seen_s(run: Run, passed: Passed) -> float:
    """When the slowed rank saw the control file change; else the beginning of the phase."""
    rank = passed.phase.fault.get("rank")
    if rank is not None and rank < len(run.steps):
        for change in run.steps[rank].changes:
            if passed.began_s <= change["at"] < passed.ended_s:
                return float(change["at"])
    return passed.began_s


def _over_ranks(steps: list[NDArray[np.float64]], figure: Any) -> float | None:
    found = [float(figure(each)) for each in steps if len(each)]
    return round(float(np.median(found)), 3) if found else None


def _truth(run: Run, index: int, slow: list[NDArray[np.float64]]) -> dict[str, float | None]:
    """The loss by the job's own steps: medians for lasting faults, means for periodic ones.

    A calm step is the mean of those before and after the fault: so a steady drift does not count,
    and half of what they differ by is part of the error.
    """
    figure = np.mean if run.passed[index].phase.kind in PERIODIC else np.median
    spans = list(_calm_spans(run, index))
    losses, errors = [], []
    for steps, slow_ms in zip(run.steps, slow, strict=True):
        sides = [side for span in spans if len(side := steps.between(*span)) >= LEAST_STEPS]
        if not sides or len(slow_ms) < LEAST_STEPS:
            continue
        calm = [float(figure(side)) for side in sides]
        slower = float(figure(slow_ms))
        losses.append(1 - float(np.mean(calm)) / slower)
        parts = [_error(side, figure) / len(sides) for side in sides]
        parts += [_error(slow_ms, figure), (max(calm) - min(calm)) / 2]
        errors.append(float(np.sqrt(np.sum(np.square(parts)))) / slower)
    if not losses:
        return {"truth": None, "truth_error": None}
    return {
        "truth": round(float(np.median(losses)), 4),
        "truth_error": round(float(np.median(errors)), 4),
    }


def _host_cost(run: Run, index: int, began_s: float) -> dict[str, float]:
    """What a fault added to the GPU and to the host of its rank, in ms of each step.

    `fault_host_ms` is the time that launching a GPU fault took, and `launched_late_ms` by how much
    later the host had launched its step than in calm ones, beyond what its peers did.
    """
    passed = run.passed[index]
    fault, window = passed.phase.fault, (began_s + SETTLE_S, passed.ended_s)
    spans, found = list(_calm_spans(run, index)), {}
    if fault["rank"] >= len(run.steps):
        return {}
    slowed = run.steps[fault["rank"]]
    if len(own := slowed.between(*window, "fault_host_ms")) and "gpu" in fault:
        found["fault_host_ms"] = round(float(np.mean(own)), 3)
        if calm := _side_medians(slowed, spans, "ms"):
            found["fault_gpu_ms"] = round(fault["gpu"] * float(np.mean(calm)), 3)
    later = {}
    for rank, steps in enumerate(run.steps):
        calm = _side_medians(steps, spans, "launched_ms")
        if calm and len(slow := steps.between(*window, "launched_ms")):
            later[rank] = float(np.median(slow)) - float(np.mean(calm))
    peers = [ms for rank, ms in later.items() if rank != fault["rank"]]
    if fault["rank"] in later and peers:
        found["launched_late_ms"] = round(later[fault["rank"]] - float(np.median(peers)), 3)
    return found


def _side_medians(steps: Steps, spans: list[tuple[float, float]], figure: str) -> list[float]:
    sides = [steps.between(*span, figure) for span in spans]
    return [float(np.median(side)) for side in sides if len(side)]


def _calm_spans(run: Run, index: int) -> Iterator[tuple[float, float]]:
    if index and run.passed[index - 1].phase.kind == CALM:
        before = run.passed[index - 1]
        yield max(before.began_s + SETTLE_S, before.ended_s - CALM_S), before.ended_s
    if index + 1 < len(run.passed) and run.passed[index + 1].phase.kind == CALM:
        after = run.passed[index + 1]
        yield after.began_s + SETTLE_S, min(after.ended_s, after.began_s + CALM_S)


def _error(ms: NDArray[np.float64], figure: Any) -> float:
    """The standard error of a figure, from blocks of neighbouring steps."""
    length = max(int(BLOCK_S * 1e3 / float(np.median(ms))), 10)
    blocks = [figure(ms[at : at + length]) for at in range(0, len(ms) - length + 1, length)]
    return float(np.std(blocks, ddof=1) / np.sqrt(len(blocks))) if len(blocks) > 2 else 0.0


def _said(heard: list[Heard], began_s: float, ended_s: float, rank: int | None) -> dict[str, Any]:
    """What Fleet said about the slowed rank, and when it first named it."""
    story, named_s, last = [], None, None
    for each in heard:
        if not began_s <= each.at_s < ended_s:
            continue
        for verdict in each.verdicts:
            if verdict.get("rank") != rank or verdict["state"] not in (NAMED, "late", "suspect"):
                continue
            brief = [verdict["state"], verdict.get("class"), verdict.get("loss")]
            if not story or story[-1][1:] != brief:
                story.append([round(each.at_s - began_s, 1), *brief])
            if verdict["state"] != "suspect":
                last = verdict
            if verdict["state"] == NAMED and named_s is None:
                named_s = round(each.at_s - began_s, 1)
    last = last or {}
    names = ("state", "loss", "loss_error", "at_most", "excess", "period", "cause")
    said = {name: last[name] for name in names if name in last}
    return {"named_s": named_s, "class": last.get("class"), "story": story[:40]} | said


def _others(run: Run, index: int) -> list[dict[str, Any]]:
    """Who was named in this phase without having been slowed."""
    passed = run.passed[index]
    found: dict[Any, dict[str, Any]] = {}
    for each in run.heard:
        if not passed.began_s <= each.at_s < passed.ended_s:
            continue
        for verdict in each.verdicts:
            if verdict["state"] == NAMED and not _was_slowed(run, index, verdict):
                found.setdefault(verdict["episode"], _brief(verdict, each.at_s, passed))
    return list(found.values())


def _was_slowed(run: Run, index: int, verdict: dict[str, Any]) -> bool:
    """Whether the episode began while its rank was slow, or in the seconds after."""
    return any(
        each.phase.fault.get("rank") == verdict.get("rank")
        and each.began_s - 1 <= _first_named_s(run, verdict) <= each.ended_s + NAMED_WITHIN_S
        for each in run.passed[: index + 1]
    )


def _first_named_s(run: Run, verdict: dict[str, Any]) -> float:
    return next(
        each.at_s
        for each in run.heard
        if any(v["episode"] == verdict["episode"] and v["state"] == NAMED for v in each.verdicts)
    )


def _brief(verdict: dict[str, Any], at_s: float, passed: Passed) -> dict[str, Any]:
    names = ("rank", "class", "loss", "excess")
    return {"after_s": round(at_s - passed.began_s, 1)} | {
        name: verdict[name] for name in names if name in verdict
    }


def _events(run: Run, passed: Passed) -> list[str]:
    """Statements about the whole job, each once, that were first heard in this phase."""
    before = {
        v["episode"] for each in run.heard if each.at_s < passed.began_s for v in each.verdicts
    }
    found = {}
    for each in run.heard:
        if passed.began_s <= each.at_s < passed.ended_s:
            for verdict in each.verdicts:
                if verdict["state"] in EVENTS and verdict["episode"] not in before:
                    text = verdict.get("evidence", "")
                    found[verdict["episode"]] = f"{verdict['state']}: {text}"[:200]
    return list(found.values())[:8]


def _pace(steps: Steps, passed: Passed) -> list[float | None]:
    """The median step of every second, for pictures."""
    edges = np.arange(passed.began_s, passed.ended_s, 1.0)
    seconds = [steps.between(at, at + 1) for at in edges]
    return [round(float(np.median(each)), 2) if len(each) else None for each in seconds]


def is_right(row: dict[str, Any]) -> bool | None:
    """Whether a fault was told right; None where the job did not measure it."""
    return None if row["truth"] is None else not remarks(row)


def remarks(row: dict[str, Any]) -> list[str]:
    """What was wrong with what was said about a fault."""
    truth, named_s = row["truth"], row["named_s"]
    if truth is None:
        return []
    found = [f"rank {each['rank']} named too" for each in row["others"]]
    if truth < COSTLESS:
        return found + ([f"named, costs {truth:.1%}"] if row.get("state") == NAMED else [])
    if named_s is None:
        return found + (["not named"] if truth >= COSTLY else [])
    if truth >= COSTLY and named_s > NAMED_WITHIN_S:
        found.append(f"named after {named_s:.0f} s")
    if row["class"] not in CLASSES[row["kind"]]:
        found.append(f"class {row['class']}")
    return found + _loss_remarks(row)


def _loss_remarks(row: dict[str, Any]) -> list[str]:
    truth, said = row["truth"], row.get("loss")
    if said is None:
        return ["no loss said"]
    if row.get("at_most"):
        fits = truth - LOSS_POINTS <= said <= 2 * truth + 0.03
    else:
        fits = abs(said - truth) <= max(LOSS_SHARE * truth, LOSS_POINTS)
    return [] if fits else [f"loss {said:.1%}"]


def write(rows: list[dict[str, Any]], path: Path) -> None:
    """Write rows as JSON, one per line; an end in the middle of it leaves the earlier file."""
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    fresh = path.with_suffix(".new")
    fresh.write_text(f"[\n{lines}\n]\n")
    fresh.rename(path)
