"""The state machine of one node: an observation and the time go in, an evaluation comes out.

The monitor does no I/O. Each tick has two halves: `observe` computes the score and what to push,
`classify` decides whether the node is a straggler, with the threshold that came back in the reply
to that push.
"""

from dataclasses import dataclass, field, replace
from typing import Any

from ingero.contract.push.encode import HealthReport
from ingero.contract.straggler import Heartbeat
from ingero.contract.threshold import Delivery as HeaderDelivery
from ingero.contract.threshold import ServedThreshold
from ingero.contract.timestamps import rfc3339_ns
from ingero.contract.types import DetectionMode, Identity, NodeState
from ingero.core.health.baseline import (
    Baseline,
    BaselinePolicy,
    baseline_signals,
    fold,
    is_degraded,
    is_warm,
    relative_signals,
)
from ingero.core.health.classifier import (
    EPSILON,
    Classification,
    ClassifierPolicy,
    Closing,
    classify,
    close,
)
from ingero.core.health.lifecycle import Lifecycle, LifecyclePolicy, Reading, update_lifecycle
from ingero.core.health.messages import StragglerMessage, episode_message
from ingero.core.health.modes import (
    UNREACHABLE_AFTER,
    Delivery,
    FleetThreshold,
    ModeDecision,
    ModePolicy,
    PushOutcome,
    by_header,
    by_poll,
    count_failures,
    decide_mode,
    without_header,
)
from ingero.core.health.observation import Observation
from ingero.core.health.score import Score, ScorePolicy, compute_score, dominant_signal, work_score

BASELINE_HOLD_S = 1800.0  # how long a slow node's baseline is kept before it may follow
BASELINE_SCORE_ALPHA = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorPolicy:
    """The policies of every part of the monitor."""

    score: ScorePolicy = field(default_factory=ScorePolicy)
    baseline: BaselinePolicy = field(default_factory=BaselinePolicy)
    lifecycle: LifecyclePolicy = field(default_factory=LifecyclePolicy)
    modes: ModePolicy = field(default_factory=ModePolicy)
    classifier: ClassifierPolicy = field(default_factory=ClassifierPolicy)
    fallback_mode: DetectionMode = DetectionMode.NONE  # reported while no other mode applies
    unreachable_after: int = UNREACHABLE_AFTER


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The result of one tick.

    `report` is None when nothing must be pushed: after a failed read, while the node is stale, and
    in the tick in which it leaves `idle` or `stale`.
    """

    state: NodeState
    decision: ModeDecision
    score: Score | None = None
    is_degraded: bool = False
    report: HealthReport | None = None
    dominant: str = "unknown"
    message: StragglerMessage | None = None
    raised: bool = False
    closing: Closing | None = None
    is_host_load_only: bool = False  # below its local limit, but only because the host is busy


@dataclass(frozen=True, slots=True)
class _Pending:
    """A score that waits for the reply to its push before it is classified."""

    score: float
    dominant: str
    work: float | None


@dataclass(slots=True)
class NodeMonitor:
    """All state of one node.

    Call once per tick: `observe`, push, `threshold_received`, `classify`.
    """

    identity: Identity
    policy: MonitorPolicy
    workload: str = "unknown"
    cgroup_hash: str = ""
    baseline: Baseline = field(default_factory=Baseline)
    lifecycle: Lifecycle = field(default_factory=Lifecycle)
    delivery: Delivery = field(default_factory=Delivery)
    classification: Classification = field(default_factory=Classification)
    failures: int = 0
    backoff_s: float = 0.0
    baseline_score: float | None = None
    last: Evaluation | None = None
    open_message: StragglerMessage | None = None  # the latest message of the open episode
    _pending: _Pending | None = None
    _below_since_s: float | None = None

    @property
    def is_reachable(self) -> bool:
        """Whether recent pushes reached Fleet."""
        return self.failures < self.policy.unreachable_after

    @property
    def samples_left(self) -> int | None:
        """How many samples with work a calibrating node still needs; None for any other."""
        if self.lifecycle.state is not NodeState.CALIBRATING:
            return None
        return max(self.policy.baseline.warmup_samples - self.lifecycle.samples, 0)

    def observe(self, observation: Observation, now_s: float, now_ns: int) -> Evaluation:
        """Do the first half of a tick: update state and score, and return what to push.

        `now_s` is monotonic, `now_ns` is the wall clock.
        """
        self.classification = replace(self.classification, raised=False, closing=None, closed=None)
        self._pending = None
        reading = Reading(at_s=observation.at_s, launches=observation.launches)
        before = self.lifecycle.state
        self.lifecycle = update_lifecycle(
            self.lifecycle,
            reading,
            now_ns / 1e9,
            self.policy.lifecycle,
            self.policy.baseline.warmup_samples,
        )
        decision = self._decide(now_s)
        is_stale = self.lifecycle.state is NodeState.STALE
        if observation.launches is None or is_stale:
            closed = self._close(Closing.LEFT_ACTIVE, now_ns) if is_stale else None
            return self._conclude(decision, message=closed)
        if self.lifecycle.woke:
            self.baseline = fold(Baseline(), observation.signals, self.policy.baseline)
            self.baseline_score = None
            return self._conclude(decision, message=self._close(Closing.LEFT_ACTIVE, now_ns))
        return self._score(observation, decision, before, now_s, now_ns)

    def classify(self, now_s: float, now_ns: int) -> Evaluation | None:
        """Do the second half of a tick, once the reply to the push has arrived or failed.

        Return None when the observation gave nothing to classify.
        """
        if self._pending is None or self.last is None:
            return None
        pending, self._pending = self._pending, None
        decision, judged = self._decide(now_s), pending.score
        is_local = decision.mode is DetectionMode.LOCAL_BASELINE
        # without peers to show that all hosts are busy, only the node's own work counts
        if is_local:
            decision = replace(decision, may_raise=pending.work is not None)
            judged = pending.score if pending.work is None else pending.work
        message = self._update_episode(pending, judged, decision, now_ns)
        is_load_only = is_local and _is_host_load_only(pending, decision.threshold)
        self.last = replace(
            self.last,
            decision=decision,
            message=message,
            raised=self.classification.raised,
            closing=self.classification.closing,
            is_host_load_only=is_load_only and not self.classification.is_straggler,
        )
        return self.last

    def threshold_received(
        self, delivery: HeaderDelivery, served: ServedThreshold | None, now_s: float
    ) -> None:
        """Take the threshold headers of a reply to a push."""
        if delivery is HeaderDelivery.MISS:
            self.delivery = without_header(self.delivery)
        else:
            self.delivery = by_header(self.delivery, _received(served, now_s), now_s)

    def threshold_polled(self, served: ServedThreshold | None, now_s: float) -> None:
        """Take the answer to a poll; None means that Fleet has no threshold yet (cold start)."""
        self.delivery = by_poll(self.delivery, _received(served, now_s), now_s)

    def push_finished(self, outcome: PushOutcome, retry_after_s: float | None) -> None:
        """Take the outcome of the last push."""
        self.failures = count_failures(self.failures, outcome)
        self.backoff_s = retry_after_s or 0.0

    def shut_down(self, now_ns: int) -> StragglerMessage | None:
        """Close the open episode, so that no consumer waits for a recovery that never comes."""
        return self._close(Closing.SHUTDOWN, now_ns)

    def heartbeat(self, now_ns: int) -> Heartbeat:
        """Return the line that tells socket readers that this agent is running."""
        decision = self.last.decision if self.last else ModeDecision(DetectionMode.NONE)
        return Heartbeat(
            node_id=self.identity.node,
            cluster_id=self.identity.cluster,
            timestamp=rfc3339_ns(now_ns),
            state=self.lifecycle.state.value,
            detection_mode=decision.mode.value,
            score=self.last.score.value if self.last and self.last.score else None,
        )

    def _score(
        self,
        observation: Observation,
        decision: ModeDecision,
        before: NodeState,
        now_s: float,
        now_ns: int,
    ) -> Evaluation:
        signals, policy = observation.signals, self.policy
        reference = baseline_signals(self.baseline, policy.baseline)
        relative = relative_signals(self.baseline, signals, policy.baseline)
        score, dominant = compute_score(relative, policy.score), dominant_signal(signals, reference)
        work = work_score(relative, reference, policy.score)
        is_active = self.lifecycle.state is NodeState.ACTIVE
        # Samples without work say nothing about the baseline.
        is_working = bool(observation.launches) or is_active
        if not self._holds_baseline(score, decision.threshold, before, now_s) and is_working:
            self.baseline = fold(self.baseline, signals, policy.baseline)
        degraded = is_degraded(self.baseline, policy.baseline)
        report = self._report(observation, score, degraded, decision.mode, now_ns)
        message = None
        if is_active and score is not None:
            self._pending = _Pending(score.value, dominant, work)
        else:
            message = self._close(Closing.LEFT_ACTIVE, now_ns)
        return self._conclude(
            decision, message, score=score, is_degraded=degraded, report=report, dominant=dominant
        )

    def _decide(self, now_s: float) -> ModeDecision:
        decision = decide_mode(
            self.delivery.threshold,
            quorum_seen=self.delivery.quorum_seen,
            reachable=self.is_reachable,
            is_warm=is_warm(self.baseline, self.policy.baseline),
            now_s=now_s,
            policy=self.policy.modes,
            backoff_s=self.backoff_s,
            baseline_score=self.baseline_score,
        )
        is_none = decision.mode is DetectionMode.NONE
        return ModeDecision(self.policy.fallback_mode) if is_none else decision

    def _update_episode(
        self, pending: _Pending, judged: float, decision: ModeDecision, now_ns: int
    ) -> StragglerMessage | None:
        if decision.threshold is None:
            return self._close(Closing.MODE_LOST, now_ns)
        self.classification = classify(
            self.classification,
            judged,
            decision.threshold,
            self.policy.classifier,
            node=f"{self.identity.cluster}/{self.identity.node}",
            now_ns=now_ns,
            may_raise=decision.may_raise,
        )
        if not self.classification.is_straggler and self.classification.closed is None:
            return None
        message = episode_message(
            self.identity, self.classification, decision, pending.score, pending.dominant, now_ns
        )
        self.open_message = message if self.classification.is_straggler else None
        return message

    def _holds_baseline(
        self, score: Score | None, threshold: float | None, before: NodeState, now_s: float
    ) -> bool:
        """Return whether the baseline must not learn this sample, because the node is too slow.

        Otherwise the baseline would follow a lasting slowdown and the score would recover by
        itself.
        """
        if score is None or threshold is None or before is not NodeState.ACTIVE:
            self._below_since_s = None
            return False
        if score.value + EPSILON >= threshold and not self.classification.is_straggler:
            self._below_since_s = None
            old = score.value if self.baseline_score is None else self.baseline_score
            self.baseline_score = old + BASELINE_SCORE_ALPHA * (score.value - old)
            return False
        self._below_since_s = now_s if self._below_since_s is None else self._below_since_s
        is_warmed_up = self.baseline.sample_count >= max(self.policy.baseline.warmup_samples, 1)
        return is_warmed_up and now_s - self._below_since_s < BASELINE_HOLD_S

    def _close(self, closing: Closing, now_ns: int) -> StragglerMessage | None:
        """End the open episode without a recovery, with the numbers of its last message."""
        self.classification = close(self.classification, closing)
        self._below_since_s = None
        last, self.open_message = self.open_message, None
        if last is None:
            return None
        event = last.event
        decision = ModeDecision(event.mode, event.threshold)
        return episode_message(
            self.identity, self.classification, decision, event.score, event.dominant_signal, now_ns
        )

    def _report(
        self,
        observation: Observation,
        score: Score | None,
        degraded: bool,
        mode: DetectionMode,
        now_ns: int,
    ) -> HealthReport:
        gpu = observation.gpu
        return HealthReport(
            at_ns=now_ns,
            state=self.lifecycle.state,
            workload=self.workload,
            cgroup_hash=self.cgroup_hash,
            score=score.value if score else None,
            signals=dict(score.signals.items()) if score else {},
            is_degraded=degraded,
            mode=mode,
            fleet_reachable=self.is_reachable,
            gpu_model=gpu.model if gpu else None,
            gpu_count=gpu.count if gpu else None,
            totals=observation.totals,
            totals_since_ns=observation.totals_since_ns,
            memory=observation.memory,
        )

    def _conclude(
        self, decision: ModeDecision, message: StragglerMessage | None, **found: Any
    ) -> Evaluation:
        self.last = Evaluation(
            state=self.lifecycle.state,
            decision=decision,
            message=message,
            raised=self.classification.raised,
            closing=self.classification.closing,
            **found,
        )
        return self.last


def _is_host_load_only(pending: _Pending, threshold: float | None) -> bool:
    return (
        threshold is not None
        and pending.score + EPSILON < threshold
        and (pending.work is None or pending.work + EPSILON >= threshold)
    )


def _received(served: ServedThreshold | None, now_s: float) -> FleetThreshold | None:
    if served is None or not served.value:  # a cold start
        return None
    return FleetThreshold(served.value, served.quorum_met, now_s, served.reason)
