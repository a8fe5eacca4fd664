"""Blame of a step trace: own compute names the worker, a replay of the schedule gives the cost."""

from dataclasses import dataclass

import numpy as np

from ingero.contract.verdict import CauseClass
from ingero.core.blame.answer import NEXT_STEPS, Answer, Culprit, Fix, Heat
from ingero.core.blame.step_trace import (
    BACKWARD,
    COMMUNICATION,
    COMPUTE,
    FORWARD,
    Floats,
    Graph,
    StepTrace,
    build_graph,
    ideal_times,
    own_compute,
    replay,
    transfer_times,
)
from ingero.core.blame.suspects import Findings, Suspect, WorkerSteps, judge
from ingero.core.durations import readable_seconds

LOSS_FLOOR = 0.03  # of the step: a smaller loss is reported as evidence, not as a cause
WORST_PERCENT = 3  # of the workers are the slowest ones in M_W
MEASURABLE = 0.001  # of the ideal step: a smaller loss has no meaningful shares
CORRELATED = 0.5  # forward and backward of a micro-batch, above which they vary together
NEEDED_SHARE = 0.08  # a suspect whose fix saves less than this is only late because of others


@dataclass(frozen=True, slots=True)
class _Job:
    """A trace with its graph, durations without waiting, and the step time that follows."""

    trace: StepTrace
    graph: Graph
    busy_s: Floats
    step_s: float

    def step_if(self, busy_s: Floats) -> float:
        return float(replay(self.graph, busy_s).mean())


def blame_steps(trace: StepTrace) -> Answer:
    """Name the slow workers of a recorded job, or what else costs it time."""
    graph = build_graph(trace)
    busy = transfer_times(trace, graph)
    job = _Job(trace, graph, busy, float(replay(graph, busy).mean()))
    ideal = ideal_times(trace, busy)
    ideal_s = job.step_if(ideal)
    workers = _worker_steps(trace)
    findings = judge(workers)
    suspects, fixed_s = _needed(job, findings.suspects)
    waited_in = _most_waited(job)
    culprits = tuple(_culprit(trace, suspect, waited_in) for suspect in suspects)
    structural_s, data_s = _structure_and_data(job, suspects)
    fixes = [
        Fix(_label(trace, s.worker), t, job.step_s - t)
        for s in suspects
        for t in [_fixed(job, [s])]
    ]
    if len(suspects) > 1:
        fixes.append(Fix("all of them", fixed_s, job.step_s - fixed_s))
    fixes.append(Fix("stages balanced", job.step_s - structural_s, structural_s))
    fixes.append(Fix("micro-batches equal", job.step_s - data_s, data_s))
    cause, loss_s = _cause(job, bool(culprits), fixed_s, structural_s, data_s, trace)
    return Answer(
        source="step trace",
        culprits=culprits,
        cause=cause,
        not_sure=_not_sure(trace, findings, suspects, cause),
        evidence=tuple(_evidence(job, findings, suspects, structural_s, data_s, ideal_s)),
        notes=_notes(trace),
        step_time_s=job.step_s,
        ideal_step_time_s=ideal_s,
        loss_s=loss_s,
        gpus=trace.world_size,
        steps=len(trace.steps),
        fixes=tuple(sorted(fixes, key=lambda fix: -fix.saved_s)),
        heat=_heat(trace, workers),
        shares=_shares(job, ideal, ideal_s),
    )


def _shares(job: _Job, ideal: Floats, ideal_s: float) -> dict[str, float]:
    """Return M_W and M_S.

    They are the parts of the loss that are gone when the slowest 3 % of workers, or the last stage,
    run ideally.
    """
    trace = job.trace
    if job.step_s - ideal_s < MEASURABLE * ideal_s:
        return {}
    stage_of = np.array([n.stage for n in trace.nodes])
    by_replica, by_stage = [], []
    for replica in range(trace.replicas):
        with_it = ideal.copy()
        with_it[:, replica] = job.busy_s[:, replica]
        by_replica.append(job.step_if(with_it))
    for stage in range(trace.stages):
        with_it = ideal.copy()
        with_it[stage_of == stage] = job.busy_s[stage_of == stage]
        by_stage.append(job.step_if(with_it))
    score = np.minimum.outer(by_replica, by_stage)
    slowest = np.argsort(-score.ravel(), kind="stable")[: -(-score.size * WORST_PERCENT // 100)]
    without_workers, without_stage = job.busy_s.copy(), job.busy_s.copy()
    for worker in slowest.tolist():
        replica, stage = _at(trace, worker)
        without_workers[stage_of == stage, replica] = ideal[stage_of == stage, replica]
    without_stage[stage_of == trace.stages - 1] = ideal[stage_of == trace.stages - 1]
    loss = job.step_s - ideal_s
    return {
        "m_w": (job.step_s - job.step_if(without_workers)) / loss,
        "m_s": (job.step_s - job.step_if(without_stage)) / loss,
    }


def _worker_steps(trace: StepTrace) -> WorkerSteps:
    own = own_compute(trace).reshape(trace.worker_rank.size, len(trace.steps))
    stage = np.tile(np.arange(trace.stages), trace.replicas)
    period = (trace.start_s + trace.duration_s).max(axis=(0, 1))
    return WorkerSteps(own, period, stage, trace.steps)


def _at(trace: StepTrace, worker: int) -> tuple[int, int]:
    return divmod(worker, trace.stages)


def _label(trace: StepTrace, worker: int) -> str:
    replica, stage = _at(trace, worker)
    return f"dp{replica}/pp{stage} (rank {trace.worker_rank[replica, stage]})"


def _fixed(job: _Job, suspects: list[Suspect]) -> float:
    """Return the step time with the compute of these workers as long as their peers'."""
    mended = job.busy_s.copy()
    slow = np.zeros((job.trace.replicas, job.trace.stages), bool)
    for suspect in suspects:
        slow[_at(job.trace, suspect.worker)] = True
    for stage in np.flatnonzero(slow.any(axis=0)):
        rows = job.trace.nodes_where(COMPUTE, int(stage))
        healthy = np.flatnonzero(~slow[:, stage])
        if len(healthy):
            pace = np.median(job.busy_s[np.ix_(rows, healthy)], axis=1, keepdims=True)
            for replica in np.flatnonzero(slow[:, stage]):
                mended[rows, replica] = np.minimum(mended[rows, replica], pace[:, 0])
    return job.step_if(mended)


def _needed(job: _Job, suspects: tuple[Suspect, ...]) -> tuple[list[Suspect], float]:
    """Return the suspects without whose fix the job stays slow, and the step time with the fix.

    The other suspects are only late because of them.
    """
    kept = list(suspects)
    if not kept:
        return [], job.step_s
    best = _fixed(job, kept)
    saved = job.step_s - best
    if len(kept) > 1:
        kept = [
            s
            for s in kept
            if _fixed(job, [o for o in kept if o is not s]) - best >= NEEDED_SHARE * saved
        ]
        kept = kept or list(suspects[:1])
    return kept, _fixed(job, kept)


def _most_waited(job: _Job) -> str | None:
    """Return the kind of communication in which workers wait longest."""
    waited: dict[str, float] = {}
    for i, node in enumerate(job.trace.nodes):
        if node.optype in COMMUNICATION:
            wait = np.maximum(0.0, job.trace.duration_s[i] - job.busy_s[i])
            waited[node.optype] = waited.get(node.optype, 0.0) + float(wait.sum())
    return max(waited, key=lambda optype: waited[optype]) if any(waited.values()) else None


def _culprit(trace: StepTrace, suspect: Suspect, waited_in: str | None) -> Culprit:
    replica, stage = _at(trace, suspect.worker)
    rank = int(trace.worker_rank[replica, stage])
    gpus = round(trace.gpus_per_worker)
    span = f"ranks {rank}–{rank + gpus - 1}" if gpus > 1 else f"rank {rank}"
    return Culprit(
        worker=f"dp{replica}/pp{stage}",
        rank=rank,
        cause=CauseClass.COMPUTE,
        excess=suspect.excess,
        error=suspect.error,
        excess_s=suspect.excess_s,
        confidence=suspect.confidence,
        period=suspect.stall_period,
        collective=waited_in,
        detail=f"{span}; own compute over {suspect.peers} peers of stage {stage} "
        f"in {suspect.named_share:.0%} of steps",
        next_step=NEXT_STEPS[CauseClass.COMPUTE],
    )


def _structure_and_data(job: _Job, suspects: list[Suspect]) -> tuple[float, float]:
    """Return the seconds per step lost to unequal stages, and to unequal micro-batches.

    Workers that are named are replaced by their peers' median.
    """
    trace = job.trace
    keep = np.ones((trace.replicas, trace.stages), bool)
    for suspect in suspects:
        keep[_at(trace, suspect.worker)] = False
    base = job.busy_s.copy()
    level, equal = base.copy(), base.copy()
    for optype in COMPUTE:
        stage_means = []
        for stage in range(trace.stages):
            rows = trace.nodes_where(frozenset({optype}), stage)
            if not len(rows):
                continue
            healthy = np.flatnonzero(keep[:, stage])
            pool = base[np.ix_(rows, healthy if len(healthy) else np.arange(trace.replicas))]
            for replica in np.flatnonzero(~keep[:, stage]):
                base[rows, replica] = np.median(pool, axis=1)
            stage_means.append((rows, float(pool.mean())))
        overall = float(np.mean([mean for _, mean in stage_means])) if stage_means else 0.0
        for rows, mean in stage_means:
            level[rows] = base[rows] * (overall / mean if mean else 1.0)
            equal[rows] = mean
    now = job.step_if(base)
    return max(0.0, now - job.step_if(level)), max(0.0, now - job.step_if(equal))


def _cause(
    job: _Job,
    has_culprits: bool,
    fixed_s: float,
    structural_s: float,
    data_s: float,
    trace: StepTrace,
) -> tuple[CauseClass | None, float]:
    if has_culprits:
        return CauseClass.COMPUTE, max(0.0, job.step_s - fixed_s)
    cause, loss = max(
        ((CauseClass.STRUCTURAL, structural_s), (CauseClass.DATA_IMBALANCE, data_s)),
        key=lambda c: c[1],
    )
    if trace.stages == 1 and cause is CauseClass.STRUCTURAL:
        cause, loss = CauseClass.DATA_IMBALANCE, data_s
    return (cause, loss) if loss >= LOSS_FLOOR * job.step_s else (None, 0.0)


def _not_sure(
    trace: StepTrace, findings: Findings, suspects: list[Suspect], cause: CauseClass | None
) -> str | None:
    if findings.split:
        names = ", ".join(_label(trace, w) for w in findings.split)
        return (
            f"too many workers of a stage are slow together to blame single ones ({names}): "
            "compare GPU models"
        )
    if findings.rivals:
        names = " or ".join(
            _label(trace, w) for w in (suspects[-1].worker, *findings.rivals) if suspects
        )
        return (
            f"{names} lie within one error bar; "
            "more steps, or the GPU clocks of both, would separate them"
            if names
            else None
        )
    if trace.replicas == 1 and cause is CauseClass.STRUCTURAL:
        return (
            "there is only one replica: a slow stage may be due to the partition or to its worker; "
            "a second replica would show which"
        )
    return None


def _evidence(
    job: _Job,
    findings: Findings,
    suspects: list[Suspect],
    structural_s: float,
    data_s: float,
    ideal_s: float,
) -> list[str]:
    trace = job.trace
    lines = []
    for s in suspects:
        lines.append(
            f"{_label(trace, s.worker)}: own compute {1 + s.excess:.2f}x its stage, "
            f"slowest of its stage in {s.named_share:.0%} of {len(trace.steps)} steps"
        )
    others = [w for w in range(trace.worker_rank.size) if w not in {s.worker for s in suspects}]
    if others:
        top = max(others, key=lambda w: findings.excess[w] - findings.error[w])
        bar = f"error bar ±{findings.error[top]:.1%}"
        near = findings.excess[top] <= 2 * findings.error[top]
        lines.append(
            f"all other workers are within the {bar} of their stage"
            if near
            else f"next: {_label(trace, top)} at {1 + findings.excess[top]:.3f}x its stage, {bar}"
        )
    lines.append(
        f"unequal stages cost {readable_seconds(structural_s)} a step, "
        f"unequal micro-batches {readable_seconds(data_s)}"
    )
    correlation = _forward_backward_correlation(job)
    if correlation >= CORRELATED and data_s >= LOSS_FLOOR * job.step_s:
        lines.append(
            "forward and backward of a micro-batch vary together "
            f"(correlation {correlation:.2f}): the data is the cause"
        )
    lines.append(
        f"replayed step {readable_seconds(job.step_s)}, "
        f"with every operation at its typical length {readable_seconds(ideal_s)}"
    )
    return lines


def _forward_backward_correlation(job: _Job) -> float:
    """Return the correlation of forward and backward times of micro-batches within a stage.

    It is 0 where one of them does not vary.
    """
    pairs: list[tuple[Floats, Floats]] = []
    for stage in range(job.trace.stages):
        forward = job.busy_s[job.trace.nodes_where(frozenset({FORWARD}), stage)]
        backward = job.busy_s[job.trace.nodes_where(frozenset({BACKWARD}), stage)]
        if forward.shape == backward.shape and forward.size:
            pairs.append(((forward / forward.mean()).ravel(), (backward / backward.mean()).ravel()))
    if not pairs:
        return 0.0
    x, y = (np.concatenate(side) for side in zip(*pairs, strict=True))
    return float(np.corrcoef(x, y)[0, 1]) if x.std() > 0 and y.std() > 0 else 0.0


def _notes(trace: StepTrace) -> tuple[str, ...]:
    notes = []
    if trace.skipped_steps:
        notes.append(f"{trace.skipped_steps} steps lack operations of some worker and are left out")
    if trace.replicas < 3:
        notes.append(f"{trace.replicas} replicas: too few workers of one role to compare well")
    return tuple(notes)


def _heat(trace: StepTrace, workers: WorkerSteps) -> Heat:
    own = workers.own_s.reshape(trace.replicas, trace.stages, -1)
    ratio = own / np.median(own, axis=0)
    rows = tuple(_label(trace, w) for w in range(trace.worker_rank.size))
    return Heat(rows, trace.steps, ratio.reshape(workers.own_s.shape))
