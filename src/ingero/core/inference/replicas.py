"""Replicas of one model: what each did lately, and which of them is slow at equal batch."""

import math
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Final

from ingero.contract.measurements.engines import EngineId, EngineReport
from ingero.core.inference.baseline import WARM_UP, Baselines, batch_bucket

WINDOW_S: Final = 20.0  # what replicas are compared over
MAX_SAMPLES: Final = 64  # of one replica
MIN_SAMPLES: Final = 3  # of a replica, at one size of batch
SLOW: Final = 1.25  # times the step of the others
NORMAL: Final = 1.1
SPREADS: Final = 4.0  # of the others, that a slow replica is away from them
MAD_TO_SIGMA: Final = 1.4826
KV_APART: Final = 0.2  # of KV use: longer contexts explain longer steps

ReplicaKey = tuple[str, int, int | None]  # node, port, data-parallel rank


@dataclass(frozen=True, slots=True)
class Sample:
    """One report, and when it came; `bucket` and `step_s` are None without a step."""

    at_s: float
    report: EngineReport
    bucket: int | None = None
    step_s: float | None = None


@dataclass(slots=True)
class Replica:
    """One engine, or one data-parallel rank of it, with its latest reports."""

    node: str
    engine: EngineId
    usd_per_hour: float | None
    samples: deque[Sample] = field(default_factory=lambda: deque(maxlen=MAX_SAMPLES))

    @property
    def key(self) -> ReplicaKey:
        return self.node, self.engine.port, self.engine.rank

    @property
    def last(self) -> Sample:
        return self.samples[-1]

    def take(self, report: EngineReport, now_s: float, baselines: Baselines) -> None:
        """Take a report; its step is also learned from, unless it is an outlier."""
        step_s, batch = report.step_s, _batch(report)
        bucket = None if batch is None or not step_s else batch_bucket(batch)
        self.samples.append(Sample(now_s, report, bucket, step_s))
        if bucket is not None and step_s:
            baselines.of((self.key, self.engine.pid, bucket)).judge(step_s)

    def recent(self, now_s: float, seconds: float = WINDOW_S) -> list[Sample]:
        """Return the samples of the last seconds."""
        return [sample for sample in self.samples if now_s - sample.at_s <= seconds]

    def steps(self, now_s: float) -> dict[int, float]:
        """Return the median step by size of batch, where there are enough samples of it."""
        by_bucket: dict[int, list[float]] = {}
        for sample in self.recent(now_s):
            if sample.bucket is not None and sample.step_s:
                by_bucket.setdefault(sample.bucket, []).append(sample.step_s)
        return {
            bucket: median(steps)
            for bucket, steps in by_bucket.items()
            if len(steps) >= MIN_SAMPLES
        }


@dataclass(frozen=True, slots=True)
class SlowReplica:
    """A replica whose steps take longer than those of the others at the same batch."""

    key: ReplicaKey
    step_s: float
    others_s: float
    peers: int
    doubt: str = ""  # what else may explain it
    against_itself: bool = False  # there is one other replica, so that its own past decides

    @property
    def loss(self) -> float:
        """The share of its time that it would save with the step of the others."""
        return 1 - self.others_s / self.step_s


def find_slow(replicas: Sequence[Replica], baselines: Baselines, now_s: float) -> list[SlowReplica]:
    """Return the slow replicas of one model; with one replica there is nobody to compare with."""
    steps = {replica.key: replica.steps(now_s) for replica in replicas}
    found = []
    for replica in replicas:
        slow = _compare(replica, steps, baselines)
        if slow is not None:
            found.append(_with_doubt(slow, replica, replicas, now_s))
    # where most are slow, the few others are the unusual ones
    return found if len(found) <= 0.4 * len(replicas) or len(replicas) == 2 else []


def _compare(
    replica: Replica, steps: dict[ReplicaKey, dict[int, float]], baselines: Baselines
) -> SlowReplica | None:
    """Compare a replica at the size of batch that most others have too."""
    mine = steps[replica.key]
    peers = {
        bucket: [own[bucket] for key, own in steps.items() if key != replica.key and bucket in own]
        for bucket in mine
    }
    bucket = max(peers, key=lambda each: len(peers[each]), default=None)
    if bucket is None or not peers[bucket]:
        return None
    others_s, step_s = median(peers[bucket]), mine[bucket]
    if step_s < SLOW * others_s:
        return None
    slow = SlowReplica(replica.key, step_s, others_s, len(peers[bucket]))
    if len(peers[bucket]) >= 2:
        return slow if _is_apart(step_s, peers[bucket]) else None
    before = baselines.of((replica.key, replica.engine.pid, bucket))
    if before.count < WARM_UP or step_s < SLOW * before.mean_s or others_s > NORMAL * before.mean_s:
        return None
    return SlowReplica(replica.key, step_s, before.mean_s, 1, against_itself=True)


def _is_apart(step_s: float, others: Iterable[float]) -> bool:
    logs = [math.log(other) for other in others]
    centre = median(logs)
    spread = MAD_TO_SIGMA * median(abs(each - centre) for each in logs)
    return math.log(step_s) - centre >= SPREADS * spread


def _with_doubt(
    slow: SlowReplica, replica: Replica, replicas: Sequence[Replica], now_s: float
) -> SlowReplica:
    """Note where the replica holds much longer contexts than the others."""
    mine = _kv_usage(replica, now_s)
    others = [_kv_usage(each, now_s) for each in replicas if each.key != replica.key]
    known = [each for each in others if each is not None]
    if mine is None or not known or mine - median(known) < KV_APART:
        return slow
    doubt = (
        f"its KV cache is {mine:.0%} full, those of the others {median(known):.0%}: "
        "longer contexts may explain longer steps"
    )
    return SlowReplica(slow.key, slow.step_s, slow.others_s, slow.peers, doubt, slow.against_itself)


def _kv_usage(replica: Replica, now_s: float) -> float | None:
    known = [s.report.kv_usage for s in replica.recent(now_s) if s.report.kv_usage is not None]
    return median(known) if known else None


def _batch(report: EngineReport) -> float | None:
    """Return the tokens of a step, or the running requests where an engine does not say."""
    return report.running if report.step_tokens is None else report.step_tokens
