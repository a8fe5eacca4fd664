"""Scenario 17: jobs as real ones look to the engine, fifty with one hidden slow rank each.

Spread and correlation of own times, steps and waits are those measured on recordings of real jobs.
Peers react to the slow rank: they compute while they wait for it, so their own time falls. The loss
is known by construction, and is not computed as the engine does.
"""

from dataclasses import dataclass

import numpy as np

from bench.detection.score import Score
from ingero.contract.verdict import CauseClass, Verdict, VerdictState
from ingero.core.verdict.engine import VerdictEngine
from ingero.core.verdict.members import Member
from ingero.core.verdict.own_times import SampleBatch, make_batch

JOBS, RANKS, START_S = 50, 8, 1_000_000.0
GROWTH = 0.06  # of the step
# Hosts of slow GPUs need up to so much of the extra time to launch extra work, and the more of it
# lies behind them, the later they are: at the end of a step, by this much more.
LAUNCHES, LATER = 1.2, 0.6
NEAR = 0.25  # of the loss: how far the one that is said may be away


@dataclass(frozen=True, slots=True, kw_only=True)
class JobKind:
    """How a kind of job varies, as shares: per point of own time, of steps and of advances.

    `fall` is by how much the own time of peers falls while they wait, `excess` by how much that of
    the slow rank grows, and `own` the part of a step that is own time.
    """

    step_s: float
    own_noise: float
    step_noise: float
    advance_noise: float
    fall: float
    excess: float
    own: float = 0.6
    wander: float = 0.003
    calm_s: int = 90
    slow_s: int = 40
    stages: int = 1

    @property
    def points_per_s(self) -> int:
        return max(1, min(16, round(1 / self.step_s)))


KINDS = {
    "DDP, 40 ms steps": JobKind(
        step_s=0.04, own_noise=0.03, step_noise=0.015, advance_noise=0.006, fall=0.20, excess=0.17
    ),
    "FSDP, 48 ms steps": JobKind(
        step_s=0.048, own_noise=0.094, step_noise=0.05, advance_noise=0.03, fall=0.05, excess=0.28,
        wander=0.01,
    ),
    "accumulation, 55 ms steps": JobKind(
        step_s=0.055, own_noise=0.05, step_noise=0.03, advance_noise=0.02, fall=0.02, excess=0.09,
        own=0.8,
    ),
    "pipeline of 4 stages, 50 ms steps": JobKind(
        step_s=0.05, own_noise=0.08, step_noise=0.03, advance_noise=0.02, fall=0.0, excess=0.20,
        own=0.6, stages=4,
    ),
    "experts, 100 ms steps": JobKind(
        step_s=0.1, own_noise=0.05, step_noise=0.02, advance_noise=0.02, fall=0.0, excess=0.10
    ),
    "launch-bound, 15 ms steps": JobKind(
        step_s=0.015, own_noise=0.06, step_noise=0.03, advance_noise=0.02, fall=0.10, excess=0.12
    ),
    "45 s steps": JobKind(
        step_s=45.0, own_noise=0.01, step_noise=0.004, advance_noise=0.002, fall=0.05, excess=0.10,
        calm_s=40 * 45, slow_s=20 * 45,
    ),
}  # fmt: skip


def run_kind(name: str, seed: int) -> dict[str, object]:
    """Run fifty jobs of a kind; return a score with how many losses are near the truth."""
    kind, world = KINDS[name], _World(KINDS[name], seed)
    named: dict[int, tuple[float, Verdict]] = {}
    false = 0
    for second in range(kind.calm_s + kind.slow_s):
        for verdict in world.second(second):
            if verdict.state is VerdictState.STRAGGLER and verdict.job is not None:
                job = int(verdict.job)
                false += second < kind.calm_s or verdict.rank != world.culprits[job]
                named.setdefault(job, (second + 1 - kind.calm_s, verdict))
    right = {j: v for j, v in named.items() if v[1].rank == world.culprits[j] and v[0] > 0}
    latest = {int(v.job): v for v in world.engine.current() if v.job and v.rank is not None}
    losses = [latest[j].loss for j in right if j in latest and latest[j].loss is not None]
    truth = GROWTH / (1 + GROWTH)
    score = Score(
        culprits=JOBS,
        found=len(right),
        false_alarms=int(false),
        node_hours=JOBS * RANKS * (kind.calm_s + kind.slow_s) / 3600,
        flaps=0,
        delays=[float(seconds) for seconds, _ in right.values()],
        top1=len(right),
        fleets=len(named),
        class_right=sum(v.cause_class is world.cause(j) for j, (_, v) in right.items()),
        class_known=len(right),
    )
    near = sum(abs(loss / truth - 1) <= NEAR for loss in losses if loss is not None)
    return score.as_json() | {"loss_right": near, "loss_known": len(losses), "step_s": kind.step_s}


class _World:
    def __init__(self, kind: JobKind, seed: int) -> None:
        self.kind, self.rng = kind, np.random.default_rng(seed)
        self.engine = VerdictEngine()
        self.culprits = self.rng.integers(1, RANKS, JOBS)
        self._is_host = self.rng.random(JOBS) < 0.5
        self._launches = self.rng.uniform(0, LAUNCHES, (JOBS, 1))
        self._is_culprit = np.arange(RANKS) == self.culprits[:, None]
        self._wander = np.zeros((JOBS, 1))
        self._step = 0
        stage = np.arange(RANKS) * kind.stages // RANKS
        self.members = np.array(
            [
                self.engine.register(
                    Member(
                        cluster="real", node=f"n{rank}", rank=rank, job=str(job),
                        role=f"stage{stage[rank]}" if kind.stages > 1 else "",
                    ),
                    START_S,
                )
                for job in range(JOBS)
                for rank in range(RANKS)
            ]
        )  # fmt: skip

    def cause(self, job: int) -> CauseClass:
        """Return the class of the fault of a job: host and GPU in turn by chance."""
        return CauseClass.HOST if self._is_host[job] else CauseClass.COMPUTE

    def second(self, second: int) -> list[Verdict]:
        """Feed the points of one second, and return the verdicts that changed."""
        points = self.kind.points_per_s
        every = max(1, round(self.kind.step_s))
        if second % every == every - 1 or every == 1:
            for _ in range(points):
                self.engine.observe(self._point(second >= self.kind.calm_s), START_S + second)
                self._step += 1
        return self.engine.tick(START_S + second)

    def _point(self, is_slow: bool) -> SampleBatch:
        kind, rng, shape = self.kind, self.rng, (JOBS, RANKS)
        own = np.exp(rng.normal(0, kind.own_noise, shape))
        own *= kind.step_s * kind.own
        self._wander = 0.99 * self._wander + rng.normal(0, 0.14 * kind.wander, (JOBS, 1))
        span = kind.step_s * np.exp(rng.normal(0, kind.step_noise, (JOBS, 1)) + self._wander)
        advance = rng.exponential(kind.advance_noise, shape) * kind.step_s
        late = rng.normal(0, 0.01, (4, *shape)) * kind.step_s  # start, enqueue, near and far
        queue = 0.3 * kind.step_s * np.exp(rng.normal(0, 0.03, shape))
        if is_slow:
            own *= np.where(self._is_culprit, 1 + kind.excess, 1 - kind.fall)
            span *= 1 + GROWTH
            waited = self._is_culprit * 1.2 * GROWTH * kind.step_s
            host = self._is_host[:, None]
            advance, late[0] = advance + waited, late[0] + waited
            by_host = waited * np.where(host, 1.0, self._launches)
            late[1:] += by_host
            late[3] += by_host * np.where(host, 0.0, LATER)
            queue = np.maximum(queue + waited - by_host, 0.0)
        return make_batch(
            self.members,
            own.ravel(),
            np.full(self.members.shape, self._step),
            span_s=np.repeat(span, RANKS, axis=1).ravel(),
            advance_s=advance.ravel(),
            start_late_s=late[0].ravel(),
            enqueue_late_s=late[1].ravel(),
            queue_s=queue.ravel(),
            near_late_s=late[2].ravel(),
            far_late_s=late[3].ravel(),
        )
