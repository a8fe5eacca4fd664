"""Scenario 10: the same job recorded with wrong clocks, which must not change the verdicts."""

import numpy as np

from ingero.contract.verdict import VerdictState
from ingero.core.collectives.columns import Collectives, Recorder, from_columns
from ingero.core.collectives.own_time import own_segments
from ingero.core.verdict.engine import VerdictEngine
from ingero.core.verdict.members import Member
from ingero.core.verdict.own_times import make_batch

RANKS, STEPS, ONSET = 8, 300, 200
START_S = 1_000_000.0
SECOND = 1_000_000_000
VARIANTS = ("±5 ms", "±500 ms", "±5 s", "drift ±100 ppm", "steps back by 2 s")


def job(seed: int) -> tuple[Collectives, int]:
    """Return records on a perfect clock: one all-reduce a step, one rank becomes 10 % slower."""
    rng = np.random.default_rng(seed)
    culprit = int(rng.integers(RANKS))
    own = rng.normal(0.9, 0.009, (STEPS, RANKS))
    own[ONSET:, culprit] *= 1.10
    end = np.zeros(STEPS + 1)
    arrival = np.zeros((STEPS, RANKS))
    for step in range(STEPS):
        arrival[step] = end[step] + own[step]
        end[step + 1] = arrival[step].max() + 0.05
    exits = np.repeat(end[1:], RANKS)
    rank = np.tile(np.arange(RANKS), STEPS)
    columns = {
        "who": rank, "rank": rank, "comm": np.ones(len(rank)),
        "seq": np.repeat(np.arange(STEPS), RANKS),
        "op": np.zeros(len(rank)), "nranks": np.full(len(rank), RANKS),
        "start_ns": np.rint((arrival.ravel() - 0.2) * SECOND), "end_ns": np.rint(exits * SECOND),
        "gpu_duration_ns": np.rint((exits - arrival.ravel()) * SECOND),
    }  # fmt: skip
    return from_columns(
        columns, ["AllReduce"], [Recorder("job", f"node{r}", r) for r in range(RANKS)]
    ), culprit


def skewed(columns: Collectives, variant: str, seed: int) -> Collectives:
    """Return the same records with the time stamps of wrong clocks."""
    rng = np.random.default_rng(seed)
    reach = {"±5 ms": 0.005, "±500 ms": 0.5, "±5 s": 5.0}.get(variant, 0.0)
    offset = rng.uniform(-reach, reach, RANKS)[columns.who]
    drift = rng.uniform(-1e-4, 1e-4, RANKS)[columns.who] if variant.startswith("drift") else 0.0
    back = (
        np.where((columns.seq >= 100) & (columns.who == 1), -2.0, 0.0)
        if variant.startswith("steps")
        else 0.0
    )

    def stamp(time_ns: np.ndarray) -> np.ndarray:
        return np.rint(time_ns * (1 + drift) + (offset + back) * SECOND)

    names = ("who", "rank", "comm", "seq", "op", "nranks")
    fields = {name: getattr(columns, name) for name in names}
    fields |= {"start_ns": stamp(columns.start_ns), "end_ns": stamp(columns.end_ns)}
    fields["gpu_duration_ns"] = np.rint(columns.gpu_duration_ns * (1 + drift))
    return from_columns(fields, columns.ops, columns.recorders)


def verdicts(columns: Collectives) -> list[tuple[str, int | None, str]]:
    """Return the verdicts in order when the records are judged step by step.

    Suspicions are left out: the step in which a clock jumps is lost, and one sample less may move
    the first suspicion by a tick.
    """
    segments = own_segments(columns)
    engine = VerdictEngine()
    members = np.array(
        [
            engine.register(Member(cluster="c", node=f"node{r}", rank=r, job="job"), START_S)
            for r in range(RANKS)
        ]
    )
    step, who = columns.seq[segments.row], segments.who
    found: list[tuple[str, int | None, str]] = []
    for second in range(1, STEPS):
        rows = np.flatnonzero(step == second)
        batch = make_batch(
            members[who[rows]],
            segments.own_s[rows],
            np.full(len(rows), second),
            idle_s=segments.idle_s[rows],
        )
        engine.observe(batch, START_S + second)
        found += [
            (str(verdict.state), verdict.rank, str(verdict.cause_class))
            for verdict in engine.tick(START_S + second)
            if verdict.state is not VerdictState.SUSPECT
        ]
    return found


def run_clocks(seed: int) -> list[tuple[str, bool]]:
    """Tell per variant whether the verdicts are those of perfect clocks and name the culprit."""
    columns, culprit = job(seed)
    plain = verdicts(columns)
    named = ("straggler", culprit) in [entry[:2] for entry in plain]
    return [
        (variant, named and verdicts(skewed(columns, variant, seed)) == plain)
        for variant in VARIANTS
    ]
