"""One node's mind: an observation and the time go in, what to push and what to say comes out. No I/O."""

from dataclasses import dataclass, field, replace
from typing import Any

from ingero.contract.push.encode import HealthReport
from ingero.contract.straggler import Heartbeat
from ingero.contract.threshold import COLD_START, ServedThreshold
from ingero.contract.threshold import Delivery as HeaderDelivery
from ingero.contract.timestamps import rfc3339_ns
from ingero.contract.types import DetectionMode, Identity, NodeState
from ingero.core.health.baseline import (
    Baseline,
    BaselinePolicy,
    fold,
    is_degraded,
    is_warm,
    relative_signals,
    usual,
)
from ingero.core.health.classifier import (
    EPSILON,
    Classification,
    ClassifierPolicy,
    Closing,
    classify,
    close,
)
from ingero.core.health.lifecycle import Lifecycle, LifecyclePolicy, Reading, follow
from ingero.core.health.messages import StragglerMessage, resolved_message, straggler_message
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

BASELINE_HOLD_S = 1800.0  # a slow node must not become its own normal; after this long it may
USUAL_SCORE_ALPHA = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class MonitorPolicy:
    """All the rules one node decides by."""

    score: ScorePolicy = field(default_factory=ScorePolicy)
    baseline: BaselinePolicy = field(default_factory=BaselinePolicy)
    lifecycle: LifecyclePolicy = field(default_factory=LifecyclePolicy)
    modes: ModePolicy = field(default_factory=ModePolicy)
    classifier: ClassifierPolicy = field(default_factory=ClassifierPolicy)
    fallback_mode: DetectionMode = DetectionMode.NONE  # the label while nothing else applies
    unreachable_after: int = UNREACHABLE_AFTER


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What one tick came to. `report` is None when nothing must be pushed: a failed look, a stale or waking node."""

    state: NodeState
    decision: ModeDecision
    score: Score | None = None
    is_degraded: bool = False
    report: HealthReport | None = None
    dominant: str = "unknown"
    message: StragglerMessage | None = None
    raised: bool = False
    closing: Closing | None = None
    is_host_load_only: bool = (
        False  # below its own line, without peers, and only because its host is busy
    )


@dataclass(slots=True)
class NodeMonitor:
    """Owns all state of one node: `observe`, push, `heard`, `judge`, once per tick."""

    identity: Identity
    policy: MonitorPolicy
    workload: str = "unknown"
    cgroup_hash: str = ""
    baseline: Baseline = field(default_factory=Baseline)
    life: Lifecycle = field(default_factory=Lifecycle)
    delivery: Delivery = field(default_factory=Delivery)
    classification: Classification = field(default_factory=Classification)
    failures: int = 0
    backoff_s: float = 0.0
    usual_score: float | None = None
    last: Evaluation | None = None
    open_message: StragglerMessage | None = None  # the latest message of the open episode
    _pending: tuple[float, str, float | None] | None = (
        None  # score, dominant signal and work score, to be judged
    )
    _below_since_s: float | None = None

    @property
    def is_reachable(self) -> bool:
        """Whether pushes get through."""
        return self.failures < self.policy.unreachable_after

    def observe(self, look: Observation, now_s: float, now_ns: int) -> Evaluation:
        """First half of a tick: state, score and what to push. `now_s` is monotonic, `now_ns` the wall clock."""
        self.classification = replace(self.classification, raised=False, closing=None, closed=None)
        self._pending = None
        reading = Reading(at_s=look.at_s, launches=look.launches)
        before, self.life = (
            self.life.state,
            follow(self.life, reading, now_ns / 1e9, self.policy.lifecycle),
        )
        decision = self._decide(now_s)
        if look.launches is None or self.life.state is NodeState.STALE:
            closed = (
                self._close(Closing.LEFT_ACTIVE, now_ns)
                if self.life.state is NodeState.STALE
                else None
            )
            return self._conclude(decision, message=closed)
        if self.life.woke:
            self.baseline = fold(Baseline(), look.signals, self.policy.baseline)
            self.usual_score = None
            return self._conclude(decision, message=self._close(Closing.LEFT_ACTIVE, now_ns))
        known = usual(self.baseline, self.policy.baseline)
        relative = relative_signals(self.baseline, look.signals, self.policy.baseline)
        score, dominant = (
            compute_score(relative, self.policy.score),
            dominant_signal(look.signals, known),
        )
        work = work_score(relative, known, self.policy.score)
        is_working = (
            bool(look.launches) or self.life.state is NodeState.ACTIVE
        )  # rest says nothing about what is usual
        if not self._must_hold(score, decision.threshold, before, now_s) and is_working:
            self.baseline = fold(self.baseline, look.signals, self.policy.baseline)
        degraded = is_degraded(self.baseline, self.policy.baseline)
        report = self._report(look, score, degraded, decision.mode, now_ns)
        message = None
        if self.life.state is NodeState.ACTIVE and score is not None:
            self._pending = (score.value, dominant, work)
        else:
            message = self._close(Closing.LEFT_ACTIVE, now_ns)
        return self._conclude(
            decision, message, score=score, is_degraded=degraded, report=report, dominant=dominant
        )

    def classify(self, now_s: float, now_ns: int) -> Evaluation | None:
        """Second half, once the reply to the push is in or will not come: the line is as fresh as it can be.

        None when the look gave nothing to judge.
        """
        if self._pending is None or self.last is None:
            return None
        (score, dominant, work), self._pending = self._pending, None
        decision = self._decide(now_s)
        judged = score
        if (
            decision.mode is DetectionMode.LOCAL_BASELINE
        ):  # no peers who might be as busy: its own work alone
            decision, judged = (
                replace(decision, may_raise=work is not None),
                score if work is None else work,
            )
        message = self._follow_episode(score, judged, dominant, decision, now_ns)
        is_host_load_only = decision.mode is DetectionMode.LOCAL_BASELINE and _is_host_load_only(
            score, work, decision.threshold
        )
        self.last = replace(
            self.last,
            decision=decision,
            message=message,
            raised=self.classification.raised,
            closing=self.classification.closing,
            is_host_load_only=is_host_load_only and not self.classification.is_straggler,
        )
        return self.last

    def threshold_received(
        self, delivery: HeaderDelivery, served: ServedThreshold | None, now_s: float
    ) -> None:
        """The threshold headers of a reply to a push."""
        if delivery is HeaderDelivery.MISS:
            self.delivery = without_header(self.delivery)
        else:
            self.delivery = by_header(self.delivery, _received(served, now_s), now_s)

    def threshold_polled(self, served: ServedThreshold | None, now_s: float) -> None:
        """An answered poll; None is Fleet's cold start."""
        self.delivery = by_poll(self.delivery, _received(served, now_s), now_s)

    def push_finished(self, outcome: PushOutcome, retry_after_s: float | None) -> None:
        """How the last push ended."""
        self.failures = count_failures(self.failures, outcome)
        self.backoff_s = retry_after_s or 0.0

    def shut_down(self, now_ns: int) -> StragglerMessage | None:
        """Close what is open, so that no consumer waits for a recovery that never comes."""
        return self._close(Closing.SHUTDOWN, now_ns)

    def heartbeat(self, now_ns: int) -> Heartbeat:
        """That this agent lives."""
        decision = self.last.decision if self.last else ModeDecision(DetectionMode.NONE)
        return Heartbeat(
            node_id=self.identity.node,
            cluster_id=self.identity.cluster,
            timestamp=rfc3339_ns(now_ns),
            state=self.life.state.value,
            detection_mode=decision.mode.value,
            score=self.last.score.value if self.last and self.last.score else None,
        )

    def _decide(self, now_s: float) -> ModeDecision:
        decision = decide_mode(
            self.delivery.threshold,
            reachable=self.is_reachable,
            is_warm=is_warm(self.baseline, self.policy.baseline),
            now_s=now_s,
            policy=self.policy.modes,
            backoff_s=self.backoff_s,
            usual_score=self.usual_score,
        )
        return (
            ModeDecision(self.policy.fallback_mode)
            if decision.mode is DetectionMode.NONE
            else decision
        )

    def _follow_episode(
        self, score: float, judged: float, dominant: str, decision: ModeDecision, now_ns: int
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
        if self.classification.is_straggler:
            self.open_message = straggler_message(
                self.identity, self.classification, decision, score, dominant, now_ns
            )
            return self.open_message
        if self.classification.closed is None:
            return None
        self.open_message = None
        return resolved_message(
            self.identity, self.classification, decision, score, dominant, now_ns
        )

    def _must_hold(
        self, score: Score | None, threshold: float | None, before: NodeState, now_s: float
    ) -> bool:
        """Below the line the baseline stands still, or a lasting slowness would heal itself in the score."""
        if score is None or threshold is None or before is not NodeState.ACTIVE:
            self._below_since_s = None
            return False
        if score.value + EPSILON >= threshold and not self.classification.is_straggler:
            self._below_since_s = None
            usual_before = score.value if self.usual_score is None else self.usual_score
            self.usual_score = usual_before + USUAL_SCORE_ALPHA * (score.value - usual_before)
            return False
        self._below_since_s = now_s if self._below_since_s is None else self._below_since_s
        is_known = self.baseline.sample_count >= max(self.policy.baseline.warmup_samples, 1)
        return is_known and now_s - self._below_since_s < BASELINE_HOLD_S

    def _close(self, closing: Closing, now_ns: int) -> StragglerMessage | None:
        """End the open episode for a reason other than recovery; its last known numbers go with the message."""
        self.classification = close(self.classification, closing)
        self._below_since_s = None
        last, self.open_message = self.open_message, None
        if last is None:
            return None
        event = last.event
        decision = ModeDecision(event.mode, event.threshold)
        return resolved_message(
            self.identity, self.classification, decision, event.score, event.dominant_signal, now_ns
        )

    def _report(
        self,
        look: Observation,
        score: Score | None,
        degraded: bool,
        mode: DetectionMode,
        now_ns: int,
    ) -> HealthReport:
        return HealthReport(
            at_ns=now_ns,
            state=self.life.state,
            workload=self.workload,
            cgroup_hash=self.cgroup_hash,
            score=score.value if score else None,
            signals=dict(score.signals.items()) if score else {},
            is_degraded=degraded,
            mode=mode,
            fleet_reachable=self.is_reachable,
            gpu_model=look.gpu.model if look.gpu else None,
            gpu_count=look.gpu.count if look.gpu else None,
            totals=look.totals,
            totals_since_ns=look.totals_since_ns,
        )

    def _conclude(
        self, decision: ModeDecision, message: StragglerMessage | None, **found: Any
    ) -> Evaluation:
        self.last = Evaluation(
            state=self.life.state,
            decision=decision,
            message=message,
            raised=self.classification.raised,
            closing=self.classification.closing,
            **found,
        )
        return self.last


def _is_host_load_only(score: float, work: float | None, threshold: float | None) -> bool:
    return (
        threshold is not None
        and score + EPSILON < threshold
        and (work is None or work + EPSILON >= threshold)
    )


def _received(served: ServedThreshold | None, now_s: float) -> FleetThreshold | None:
    return (
        None
        if served is None or served == COLD_START
        else FleetThreshold(served.value, served.quorum_met, now_s)
    )
