"""The score of an outcome against the truth."""

from dataclasses import asdict, dataclass

import numpy as np

from bench.detection.detectors import Outcome
from bench.detection.world import World
from ingero.contract.verdict import CauseClass


@dataclass
class Score:
    """One row of the scoreboard; None where a figure has no meaning."""

    culprits: int
    found: int
    false_alarms: int
    node_hours: float
    flaps: int
    delays: list[float]
    top1: int | None = None  # fleets whose first alarm was right
    fleets: int = 0
    class_right: int | None = None
    class_known: int | None = None
    period_right: int | None = None
    fleets_all: int = 0
    fleet_events_right: int | None = None  # fleets with an event of the right class
    fleet_events_wrong: int = 0  # fleets with a false event of a slow network or a hang
    price_error: float | None = None

    @property
    def recall(self) -> float | None:
        return self.found / self.culprits if self.culprits else None

    @property
    def precision(self) -> float | None:
        raised = self.found + self.false_alarms
        return self.found / raised if raised and self.culprits else None

    @property
    def false_per_1000_h(self) -> float:
        return 1000 * self.false_alarms / self.node_hours if self.node_hours else 0.0

    def delay(self, percentile: int) -> float | None:
        return float(np.percentile(self.delays, percentile)) if self.delays else None

    def as_json(self) -> dict[str, object]:
        return asdict(self) | {
            "recall": self.recall,
            "precision": self.precision,
            "delay_p50_s": self.delay(50),
            "delay_p95_s": self.delay(95),
            "false_alarms_per_1000_node_hours": round(self.false_per_1000_h, 3),
        }


def score(world: World, outcome: Outcome, is_verdict: bool) -> Score:
    """Compare alarms with culprits; an alarm before the onset, or on another rank, is false."""
    right = [(c, s) for c, s in outcome.alarms if c in world.culprits and s > world.culprits[c]]
    false = len(outcome.alarms) - len(right)
    first: dict[int, int] = {}
    for column, second in right:
        first.setdefault(column, second)
    result = Score(
        culprits=len(world.culprits),
        found=len(first),
        false_alarms=false,
        node_hours=world.node_hours,
        flaps=len(right) - len(first),
        delays=[second - world.culprits[column] for column, second in first.items()],
    )
    if world.culprits:
        _top1(world, outcome, result)
    if is_verdict:
        _extras(world, outcome, result)
    return result


def _top1(world: World, outcome: Outcome, result: Score) -> None:
    """Tell for each fleet with an alarm after the onset whether the first one was right."""
    named: dict[int, int] = {}
    for column, second in outcome.alarms:
        if second > min(world.culprits.values()):
            named.setdefault(column // world.size, column)
    result.top1 = sum(column in world.culprits for column in named.values())
    result.fleets = len(named)


def _extras(world: World, outcome: Outcome, result: Score) -> None:
    named = {c: v for c, v in outcome.verdicts.items() if c in world.culprits}
    known = [c for c in named if c in world.cause]
    if known and world.period is None:
        result.class_known = len(known)
        result.class_right = sum(named[c].cause_class is world.cause[c] for c in known)
    if world.period is not None and named:
        result.period_right = sum(
            v.period is not None and abs(v.period - world.period) <= 2 for v in named.values()
        )
    if world.fleet_cause is not None:
        result.fleet_events_right = len(
            {f for f, v in outcome.fleet_events if v.cause_class is world.fleet_cause}
        )
    claims = (CauseClass.NETWORK, CauseClass.HANG)
    wrong = {
        f
        for f, v in outcome.fleet_events
        if v.cause_class in claims and v.cause_class is not world.fleet_cause
    }
    result.fleets_all, result.fleet_events_wrong = world.fleets, len(wrong)
    if len(world.culprits) == world.fleets and world.period is None and known:
        result.price_error = _price_error(world, named)


def _price_error(world: World, named: dict[int, object]) -> float | None:
    """Return the median relative error of the price, against a replay without the slowdown."""
    errors = []
    for column, verdict in named.items():
        if verdict.usd_per_hour is None:  # type: ignore[attr-defined]  # a Verdict
            continue  # Fleet knows no price of a GPU without a model
        fleet = slice(column // world.size * world.size, (column // world.size + 1) * world.size)
        own = np.exp(world.log_own[-32:, fleet])  # the engine prices the last 32 steps
        other = np.delete(own, column % world.size, axis=1)
        slowest = own.max(axis=1)
        without = np.maximum(other.max(axis=1), np.median(own, axis=1))
        true = world.size * float((slowest - without).mean() / slowest.mean())
        if true > 0.05 * world.size:
            errors.append(abs(verdict.usd_per_hour - true) / true)  # type: ignore[attr-defined]  # a Verdict
    return float(np.median(errors)) if errors else None
