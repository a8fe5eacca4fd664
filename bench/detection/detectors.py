"""Three detectors on the same world: the published threshold rule, the same made careful, and the verdict engine."""

import warnings
from dataclasses import dataclass, field

import numpy as np

from bench.detection.world import World
from ingero.contract.verdict import Verdict, VerdictState
from ingero.core.robust import MAD_TO_SIGMA
from ingero.core.verdict.engine import VerdictEngine
from ingero.core.verdict.samples import SampleBatch, make_batch
from ingero.core.verdict.table import Member

START_S = 1_000_000.0
THRESHOLD_TICK_S = 10
NAMES = ("threshold k 2", "threshold k 3.5, 3 in a row", "verdict")


@dataclass
class Outcome:
    """Alarms as (column, second raised); a column may be raised again after it recovered."""

    alarms: list[tuple[int, int]] = field(default_factory=list)
    fleet_events: list[int] = field(default_factory=list)  # fleets that had one
    verdicts: dict[int, Verdict] = field(default_factory=dict)  # the first straggler verdict of a column


def run_threshold(world: World, k: float, confirmations: int) -> Outcome:
    """Score = inverse own time against the node's own start; alarm below median - k · 1.4826 · MAD, smoothed by 0.2."""
    ticks = len(world.log_own) // THRESHOLD_TICK_S
    rows = world.log_own[: ticks * THRESHOLD_TICK_S].reshape(ticks, THRESHOLD_TICK_S, -1)
    with np.errstate(all="ignore"):
        known = ~np.isnan(rows).all(axis=1)
        mean = np.where(known, np.nansum(rows, axis=1) / np.maximum((~np.isnan(rows)).sum(axis=1), 1), np.nan)
        start = _nanmedian(mean[:12], 0)
        score = np.clip(0.95 * np.exp(-(mean - start)), 0.0, 1.0)
        by_fleet = score.reshape(ticks, world.fleets, world.size)
        centre = _nanmedian(by_fleet, 2)
        raw = centre - k * MAD_TO_SIGMA * _nanmedian(np.abs(by_fleet - centre[:, :, None]), 2)
    line, streak = raw[0], np.zeros(score.shape[1], int)
    outcome, raised = Outcome(), np.zeros(score.shape[1], bool)
    for tick in range(12, ticks):
        line = np.where(np.isnan(raw[tick]), line, 0.2 * raw[tick] + 0.8 * line)
        streak = np.where(score[tick] < line[world.fleet], streak + 1, 0)
        now = streak >= confirmations
        outcome.alarms += [(int(c), (tick + 1) * THRESHOLD_TICK_S) for c in np.flatnonzero(now & ~raised)]
        raised = now
    return outcome


def _nanmedian(values: np.ndarray, axis: int) -> np.ndarray:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # seconds in which nobody reported
        return np.nanmedian(values, axis=axis)


def run_verdict(world: World, usd: float = 1.0, seed: int = 0) -> Outcome:
    """Feed the engine second by second as pushes would arrive, and note what it says."""
    outcome = Outcome()
    engine, members = _engine(world, usd, 0)
    column_of: dict[int, int] = {int(member): column for column, member in enumerate(members)}
    own, idle, rng = np.exp(world.log_own), world.idle(), np.random.default_rng(seed)
    phase = rng.integers(world.push_s, size=len(members))
    late: list[tuple[int, SampleBatch]] = []
    keys = {engine.state.members[m].key: c for m, c in column_of.items()}
    for second in range(len(own)):
        now_s = START_S + second
        if second == world.restart_s:
            engine, members = _engine(world, usd, second)
        for _, batch in [entry for entry in late if entry[0] == second]:
            engine.observe(batch, now_s)
        late = [entry for entry in late if entry[0] > second]
        who = np.flatnonzero((second + phase) % world.push_s == world.push_s - 1)
        batch = _batch(world, own, idle, members, who, second)
        if batch is not None:
            _deliver(engine, world, batch, rng, late, second)
        for verdict in engine.tick(now_s):
            _note(outcome, verdict, second, keys)
    for verdict in engine.current():  # the figures of a running episode follow what is going on
        if verdict.node and verdict.state is VerdictState.STRAGGLER:
            outcome.verdicts[_column(verdict, keys)] = verdict
    return outcome


def _column(verdict: Verdict, keys: dict[tuple[str, str, str, int], int]) -> int:
    job = verdict.job or ""
    return keys[(job.replace("job", "fleet"), job, verdict.node, -1 if verdict.rank is None else verdict.rank)]


def _engine(world: World, usd: float, second: int) -> tuple[VerdictEngine, np.ndarray]:
    engine = VerdictEngine()
    members = [
        engine.register(
            Member(
                cluster=f"fleet{column // world.size}",
                node=f"node{column % world.size}",
                rank=column % world.size,
                job=f"job{column // world.size}",
                role=world.roles[column] if world.roles else "",
                gpu_model=world.models[column] if world.models else "",
                usd_per_gpu_hour=usd,
            ),
            START_S + second,
        )
        for column in range(world.log_own.shape[1])
    ]
    return engine, np.array(members)


def _batch(
    world: World, own: np.ndarray, idle: np.ndarray, members: np.ndarray, who: np.ndarray, second: int
) -> SampleBatch | None:
    steps = np.arange(max(0, second - world.push_s + 1), second + 1)
    values, idles = own[steps][:, who], idle[steps][:, who]
    row, column = np.nonzero(~np.isnan(values))
    if not len(row):
        return None
    return make_batch(members[who[column]], values[row, column], steps[row], idle_s=idles[row, column])


def _deliver(
    engine: VerdictEngine,
    world: World,
    batch: SampleBatch,
    rng: np.random.Generator,
    late: list[tuple[int, SampleBatch]],
    second: int,
) -> None:
    """Some batches never come, some come late, some twice; and somebody may speak in another's name."""
    now_s = START_S + second
    if world.loss or world.disorder:
        fate = rng.random(len(batch))
        lost, tardy = fate < world.loss, (fate >= world.loss) & (fate < world.loss + world.disorder)
        twice = fate > 1 - world.disorder
        for mask, delay in ((tardy, 2), (twice, 1)):
            if mask.any():
                late.append((second + delay, _rows(batch, mask)))
        batch = _rows(batch, ~(lost | tardy))
    engine.observe(batch, now_s)
    if world.spoofed:
        fake = _rows(batch, np.isin(batch.member, world.spoofed))
        engine.observe(make_batch(fake.member, np.full(len(fake), np.median(batch.own_s)), fake.step), now_s)


def _rows(batch: SampleBatch, mask: np.ndarray) -> SampleBatch:
    return make_batch(batch.member[mask], batch.own_s[mask], batch.step[mask], idle_s=batch.idle_s[mask])


def _note(outcome: Outcome, verdict: Verdict, second: int, keys: dict[tuple[str, str, str, int], int]) -> None:
    job = verdict.job or ""
    if verdict.state is VerdictState.STRAGGLER:
        column = _column(verdict, keys)
        if column not in outcome.verdicts or outcome.verdicts[column].episode != verdict.episode:
            outcome.alarms.append((column, second + 1))
        outcome.verdicts[column] = verdict
    elif verdict.node == "" and verdict.state in (VerdictState.FLEET_EVENT, VerdictState.NOT_SURE):
        outcome.fleet_events.append(int(job.removeprefix("job")))
