"""A small fleet for the verdict engine: log own times in, verdicts out, on a hand-driven clock."""

from collections.abc import Callable

import numpy as np

from ingero.contract.verdict import Verdict, VerdictState
from ingero.core.verdict.engine import VerdictEngine
from ingero.core.verdict.members import Member
from ingero.core.verdict.own_times import make_batch

START_S = 1_000_000.0
ONSET = 150  # the second at which `slowed` becomes slow


def noise(seconds: int, ranks: int, seed: int = 0, spread: float = 0.008) -> np.ndarray:
    """Return independent noise around a common mode that changes by a few percent."""
    rng = np.random.default_rng(seed)
    return (
        rng.normal(0, spread, (seconds, ranks)) + np.cumsum(rng.normal(0, 0.002, seconds))[:, None]
    )


def slowed(
    ranks: int = 8, rank: int = 3, effect: float = 0.05, seconds: int = 230, seed: int = 1
) -> np.ndarray:
    """Return noise in which one rank becomes slower at ONSET."""
    own = noise(seconds, ranks, seed)
    own[ONSET:, rank] += np.log1p(effect)
    return own


def run(
    log_own: np.ndarray,
    engine: VerdictEngine | None = None,
    columns: dict[str, np.ndarray] | None = None,
    **labels: object,
) -> list[tuple[int, Verdict]]:
    """Feed one row a second, NaN meaning no data, and return (second, verdict).

    `columns` are further columns of the samples by name, as [second, rank].
    """
    engine = engine or VerdictEngine()
    seconds, ranks = log_own.shape
    members = np.array([engine.register(member(rank, **labels), START_S) for rank in range(ranks)])
    found = []
    for second in range(seconds):
        known = ~np.isnan(log_own[second])
        more = {name: values[second][known] for name, values in (columns or {}).items()}
        engine.observe(
            make_batch(
                members[known],
                np.exp(log_own[second][known]),
                np.full(known.sum(), second),
                **more,
            ),
            START_S + second,
        )
        found += [(second, verdict) for verdict in engine.tick(START_S + second)]
    return found


def span_of(log_own: np.ndarray, transfer_s: float = 0.15) -> np.ndarray:
    """Return the length of each step, which ends with the slowest rank, as [second, rank]."""
    length = np.exp(log_own).max(axis=1, keepdims=True) + transfer_s
    return np.repeat(length, log_own.shape[1], axis=1)


def advance_of(log_own: np.ndarray) -> np.ndarray:
    """Return how much later than all others the slowest rank of each step is; 0 for the others."""
    own, places = np.exp(log_own), np.argsort(log_own, axis=1)[:, -2:]
    second, last = np.take_along_axis(own, places, axis=1).T
    advance = np.zeros_like(own)
    np.put_along_axis(advance, places[:, 1:], (last - second)[:, None], axis=1)
    return advance


def member(rank: int, **labels: object) -> Member:
    return Member(**{"cluster": "c", "node": f"n{rank}", "rank": rank, "job": "j", **labels})  # type: ignore[arg-type]


def blamed(found: list[tuple[int, Verdict]]) -> set[int | None]:
    return {verdict.rank for _, verdict in found if verdict.state is VerdictState.STRAGGLER}


def states(found: list[tuple[int, Verdict]], rank: int) -> list[str]:
    return [str(verdict.state) for _, verdict in found if verdict.rank == rank]


Labels = Callable[[int], dict[str, object]]


def steady(seconds: int, ranks: int, seed: int = 0, common: float = 0.01) -> np.ndarray:
    """Return noise of 1 % per rank around a common mode that wanders slowly."""
    rng = np.random.default_rng(seed)
    wander = np.zeros(seconds)
    for second in range(1, seconds):
        wander[second] = 0.99 * wander[second - 1] + rng.normal(0, common * np.sqrt(1 - 0.99**2))
    return rng.normal(0, 0.01, (seconds, ranks)) + wander[:, None]


def run_labelled(
    log_own: np.ndarray,
    labels: Labels = lambda rank: {},
    *,
    step_s: int = 1,
    behind_s: dict[int, int] | None = None,
) -> list[tuple[int, Verdict]]:
    """Feed one step every `step_s` seconds; reports of some ranks arrive `behind_s` later."""
    engine, ranks = VerdictEngine(), log_own.shape[1]
    members = np.array(
        [
            engine.register(member(r, usd_per_gpu_hour=1.0, **labels(r)), START_S)
            for r in range(ranks)
        ]
    )
    own, span = np.exp(log_own) * step_s, span_of(log_own) * step_s
    delay = np.array([(behind_s or {}).get(rank, 0) for rank in range(ranks)])
    found = []
    for second in range(len(log_own) * step_s):
        for late in np.unique(delay).tolist():
            step, rest = divmod(second - late, step_s)
            if rest == step_s - 1 and step >= 0:
                who = np.flatnonzero(delay == late)
                batch = make_batch(
                    members[who], own[step, who], np.full(len(who), step), span_s=span[step, who]
                )
                engine.observe(batch, START_S + second)
        found += [(second, verdict) for verdict in engine.tick(START_S + second)]
    return found


def events(found: list[tuple[int, Verdict]]) -> list[Verdict]:
    return [v for _, v in found if v.state is VerdictState.FLEET_EVENT]
