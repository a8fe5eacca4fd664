"""One node's mind: published loop vector, failed looks, episodes and how they end."""

from typing import Any

import pytest

from ingero.contract.straggler import StragglerResolved, StragglerState
from ingero.contract.threshold import COLD_START, Delivery, ServedThreshold
from ingero.contract.types import DetectionMode, Identity, NodeState
from ingero.core.health.baseline import BaselinePolicy
from ingero.core.health.classifier import ClassifierPolicy, Closing
from ingero.core.health.lifecycle import LifecyclePolicy
from ingero.core.health.modes import ModePolicy, PushOutcome
from ingero.core.health.monitor import Evaluation, MonitorPolicy, NodeMonitor
from ingero.core.health.observation import Observation
from ingero.core.health.score import Signals

HEALTHY = (100.0, 0.95, 0.95, 0.95)
SLOW = (30.0, 0.95, 0.95, 0.95)
START_NS = 1_794_709_942_000_000_000


class Life:
    """A monitor and its clock; every tick hears the same threshold again unless told otherwise."""

    def __init__(self, warmup: int = 0, confirmations: int = 1, **identity: Any) -> None:
        policy = MonitorPolicy(
            baseline=BaselinePolicy(warmup_samples=warmup),
            lifecycle=LifecyclePolicy(warmup_samples=warmup),
            modes=ModePolicy(push_interval_s=10.0),
            classifier=ClassifierPolicy(confirmations=confirmations),
        )
        self.monitor = NodeMonitor(Identity(**({"node": "n1", "cluster": "c"} | identity)), policy)
        self.now_s = 0.0

    def tick(
        self,
        signals: tuple[float, ...] | None,
        threshold: float | None = 0.80,
        launches: int = 600,
        step_s: float = 10.0,
    ) -> Evaluation:
        self.now_s += step_s
        if threshold is not None:
            self.monitor.threshold_received(
                Delivery.HIT, ServedThreshold(threshold, True), self.now_s
            )
        now_ns = START_NS + int(self.now_s * 1e9)
        look = Observation(
            at_s=now_ns / 1e9,
            launches=None if signals is None else launches,
            signals=Signals(*signals) if signals else Signals(),
        )
        return self.think(look, now_ns)

    def think(self, look: Observation, now_ns: int) -> Evaluation:
        """Both halves at once."""
        evaluation = self.monitor.observe(look, self.now_s, now_ns)
        return self.monitor.classify(self.now_s, now_ns) or evaluation

    def ticks(self, count: int, signals: tuple[float, ...] | None, **options: Any) -> Evaluation:
        for _ in range(count):
            evaluation = self.tick(signals, **options)
        return evaluation


def alone(confirmations: int = 3, signals: tuple[float | None, ...] = HEALTHY) -> Life:
    """A warm node whose Fleet never answered."""
    life = Life(warmup=5, confirmations=confirmations)
    for _ in range(8):
        life.monitor.push_finished(PushOutcome.TRANSPORT, None)
        evaluation = life.tick(signals, threshold=None)
    assert evaluation.decision.mode is DetectionMode.LOCAL_BASELINE
    return life


@pytest.mark.parametrize(
    "busy", [(100.0, 0.95, 0.95, 0.0), (100.0, 0.95, 0.05, 0.95), (100.0, 0.95, 0.0, 0.0)]
)
def test_without_peers_a_busy_host_makes_no_straggler(busy: tuple[float, ...]) -> None:
    """The score falls to half; the work of this node does not."""
    life = alone()
    evaluation = life.ticks(10, busy, threshold=None)
    assert evaluation.score is not None and evaluation.decision.threshold is not None
    assert evaluation.score.value < evaluation.decision.threshold
    assert (evaluation.message, evaluation.is_host_load_only) == (None, True)
    assert not life.tick(HEALTHY, threshold=None).is_host_load_only


def test_without_peers_less_work_makes_one_on_a_busy_host_too() -> None:
    life = alone()
    evaluation = life.ticks(3, (30.0, 0.95, 0.95, 0.0), threshold=None)
    assert evaluation.raised and not evaluation.is_host_load_only
    still = life.ticks(8, (30.0, 0.95, 0.95, 0.95), threshold=None)
    assert still.message is not None and isinstance(still.message.line, StragglerState)
    while_busy = life.ticks(2, (100.0, 0.95, 0.95, 0.0), threshold=None)
    assert while_busy.closing is None or while_busy.closing is Closing.RECOVERED
    assert not life.monitor.classification.is_straggler, (
        "its work is back, whatever else the host does"
    )


def test_without_peers_and_without_a_sign_of_work_nobody_is_named() -> None:
    life = alone(signals=(None, None, 0.9, 0.9))
    evaluation = life.ticks(10, (None, None, 0.9, 0.0), threshold=None)
    assert (evaluation.message, evaluation.is_host_load_only) == (None, True)


def test_with_a_line_of_peers_load_still_counts() -> None:
    """The published score, unchanged: peers on equally busy hosts have moved the line."""
    life = Life(warmup=5)
    life.ticks(8, HEALTHY)
    assert life.tick((100.0, 0.95, 0.95, 0.0)).raised


def test_published_loop_vector_70() -> None:
    life = Life()
    evaluations = [life.tick(raw) for raw in ((50, 0.5, 0.5, 0.5), (50, 0.5, 0.5, 0.5), HEALTHY)]
    assert [t.score.value for t in evaluations if t.score] == pytest.approx([0.15, 0.70, 0.97])
    assert [t.message.event.is_straggler for t in evaluations if t.message] == [True, True, False]
    lines = [t.message.line for t in evaluations if t.message]
    assert [type(line) for line in lines] == [StragglerState, StragglerState, StragglerResolved]


def test_bug_a_failed_look_is_skipped_entirely() -> None:
    """The reference scored, pushed and folded an all-zero observation: one read error was a false straggler."""
    life = Life(warmup=3)
    life.ticks(5, HEALTHY)
    before = life.monitor.baseline
    failed = life.tick(None)
    assert (failed.score, failed.report, failed.message) == (None, None, None)
    assert life.monitor.baseline == before
    assert life.monitor.life.state is NodeState.ACTIVE


def test_nothing_is_pushed_while_stale_and_on_the_tick_that_wakes() -> None:
    life = Life(warmup=3)
    life.ticks(5, HEALTHY)
    assert life.ticks(3, None).state is NodeState.STALE
    assert life.tick(None).report is None
    waking = life.tick((40.0, 0.9, 0.9, 0.9))
    assert (waking.state, waking.report) == (NodeState.CALIBRATING, None)
    assert (
        life.monitor.baseline.sample_count == 1
    )  # the old baseline is gone, this sample begins the new one
    assert life.tick((40.0, 0.9, 0.9, 0.9)).report is not None


def test_idle_and_calibrating_nodes_push_and_are_never_judged_f052() -> None:
    life = Life(warmup=30)
    evaluation = life.ticks(20, (1.0, 0.1, 0.1, 0.1))
    assert (evaluation.state, evaluation.message) == (NodeState.CALIBRATING, None)
    assert evaluation.report is not None
    idle = Life(warmup=1, confirmations=3)
    idle.ticks(3, HEALTHY)
    evaluation = idle.ticks(3, (0.0, 0.0, 0.9, 0.9), launches=0)
    assert (evaluation.state, evaluation.message) == (NodeState.IDLE, None)
    assert evaluation.report is not None


def test_rest_does_not_become_usual() -> None:
    life = Life(warmup=3)
    life.ticks(50, (0.0, 0.0, 0.9, 0.9), launches=0)
    assert (life.monitor.life.state, life.monitor.baseline.sample_count) == (
        NodeState.CALIBRATING,
        0,
    )
    evaluation = life.ticks(4, HEALTHY)
    assert (evaluation.state, evaluation.score and evaluation.score.signals.throughput) == (
        NodeState.ACTIVE,
        pytest.approx(1.0),
    )


def straggling(**options: Any) -> Life:
    life = Life(warmup=3, **options)
    life.ticks(5, HEALTHY)
    assert life.tick(SLOW).raised
    return life


def test_bug_going_idle_closes_the_episode() -> None:
    life = straggling()
    closing = life.ticks(3, SLOW, launches=0)
    assert (closing.state, closing.closing) == (NodeState.IDLE, Closing.LEFT_ACTIVE)
    assert isinstance(closing.message and closing.message.line, StragglerResolved)
    assert closing.message.line.reason == "left_active"


def test_bug_becoming_stale_closes_the_episode() -> None:
    closing = straggling().ticks(3, None)
    assert closing.message is not None
    assert isinstance(closing.message.line, StragglerResolved)


def test_bug_losing_the_mode_closes_the_episode() -> None:
    life = straggling()
    life.monitor.baseline = life.monitor.baseline.__class__()  # cold: no local line either
    closing = life.tick(SLOW, threshold=None, step_s=3600.0)
    assert (closing.decision.mode, closing.closing) == (DetectionMode.NONE, Closing.MODE_LOST)


def test_bug_shutting_down_closes_the_episode() -> None:
    life = straggling()
    message = life.monitor.shut_down(START_NS)
    assert message is not None
    assert isinstance(message.line, StragglerResolved)
    assert (message.line.reason, message.event.is_straggler) == ("shutdown", False)
    assert life.monitor.shut_down(START_NS) is None


def test_both_channels_share_one_id_through_the_episode() -> None:
    life = straggling(rank=0, world_size=8)
    ids = set()
    for evaluation in (life.tick(SLOW), life.tick(SLOW), life.tick(HEALTHY)):
        assert evaluation.message is not None
        ids |= {evaluation.message.line.event_id, evaluation.message.event.event_id}
        assert (evaluation.message.line.rank, evaluation.message.line.world_size) == (0, 8)
    assert len(ids) == 1


def test_a_lasting_slowness_does_not_heal_itself() -> None:
    """A reference that follows the slow node would read 0.96 of normal after thirty samples."""
    life = straggling()
    evaluation = life.ticks(100, SLOW)
    assert evaluation.score is not None
    assert evaluation.score.signals.throughput == pytest.approx(0.3)
    assert life.monitor.classification.is_straggler
    assert life.ticks(2, HEALTHY).score.value == pytest.approx(0.97)  # type: ignore[union-attr] # it was healthy before


def test_after_half_an_hour_the_new_level_may_become_normal() -> None:
    life = straggling()
    evaluation = life.ticks(300, SLOW)
    assert evaluation.score is not None
    assert evaluation.score.signals.throughput is not None
    assert evaluation.score.signals.throughput > 0.9


def test_the_line_that_came_with_the_reply_is_the_one_that_judges() -> None:
    """A whole fleet fell: the score is far below the line the node knew, and above the one its push brought back."""
    life = Life(warmup=3)
    life.ticks(5, HEALTHY, threshold=0.90)
    life.now_s += 10.0
    now_ns = START_NS + int(life.now_s * 1e9)
    look = Observation(at_s=now_ns / 1e9, launches=600, signals=Signals(*SLOW))
    observed = life.monitor.observe(look, life.now_s, now_ns)
    assert observed.message is None
    assert observed.report is not None
    life.monitor.threshold_received(Delivery.HIT, ServedThreshold(0.30, True), life.now_s)
    judged = life.monitor.classify(life.now_s, now_ns)
    assert judged is not None
    assert (judged.raised, judged.decision.threshold) == (False, 0.30)
    assert life.monitor.classify(life.now_s, now_ns) is None  # once per look


def test_three_confirmations_by_default() -> None:
    life = Life(warmup=3, confirmations=3)
    life.ticks(5, HEALTHY)
    assert [life.tick(SLOW).raised for _ in range(4)] == [False, False, True, False]


def test_dominant_signal_compares_rate_with_rate() -> None:
    life = Life(warmup=3)
    life.ticks(5, (5000.0, 0.95, 0.95, 0.95))
    evaluation = life.tick((4900.0, 0.30, 0.95, 0.95))
    assert evaluation.dominant == "compute"


def test_outage_modes_f017() -> None:
    life = Life(warmup=3)
    life.ticks(5, HEALTHY)
    seen = [life.tick(HEALTHY).decision.mode]
    for _ in range(45):
        life.monitor.push_finished(PushOutcome.TRANSPORT, None)
        mode = life.tick(HEALTHY, threshold=None).decision.mode
        seen += [mode] if mode is not seen[-1] else []
    assert seen == [
        DetectionMode.FLEET,
        DetectionMode.LOCAL_CACHED,
        DetectionMode.LOCAL_BASELINE,
    ]
    life.monitor.push_finished(PushOutcome.OK, None)
    assert life.tick(HEALTHY).decision.mode is DetectionMode.FLEET


def test_reachability_vector_65() -> None:
    monitor = Life().monitor
    seen = []
    for outcome in "EEEOEEE":
        monitor.push_finished(PushOutcome.SERVER_ERROR if outcome == "E" else PushOutcome.OK, None)
        seen.append(monitor.is_reachable)
    assert seen == [True, True, False, True, True, True, False]


@pytest.mark.parametrize("outcome", [PushOutcome.SHED, PushOutcome.REFUSED])
def test_bug_an_answer_is_not_an_outage(outcome: PushOutcome) -> None:
    """The reference counted 400 and 429 toward unreachable, although Fleet had answered."""
    monitor = Life().monitor
    for _ in range(10):
        monitor.push_finished(outcome, None)
    assert monitor.is_reachable


def test_bug_cold_start_by_header_and_by_poll_mean_the_same() -> None:
    monitor = Life().monitor
    monitor.threshold_received(Delivery.HIT, ServedThreshold(0.88, True), 1.0)
    monitor.threshold_received(Delivery.HIT, COLD_START, 2.0)
    monitor.threshold_polled(None, 3.0)
    assert monitor.delivery.threshold is not None
    assert monitor.delivery.threshold.value == 0.88


def test_a_rejected_header_keeps_the_old_value_vectors_47_49() -> None:
    monitor = Life().monitor
    monitor.threshold_received(Delivery.HIT, ServedThreshold(0.82, True), 1.0)
    monitor.threshold_received(Delivery.REJECTED, None, 2.0)
    assert monitor.delivery.threshold is not None
    assert (monitor.delivery.threshold.value, monitor.delivery.header_at_s) == (0.82, 2.0)
    monitor.threshold_received(Delivery.MISS, None, 3.0)
    assert monitor.delivery.header_at_s is None


def test_missing_signals_are_not_zeros() -> None:
    life = Life(warmup=1)
    life.ticks(3, HEALTHY)
    life.now_s += 10
    look = Observation(at_s=START_NS / 1e9, launches=600, signals=Signals(100.0, None, None, 0.95))
    evaluation = life.think(look, START_NS)
    assert evaluation.score is not None
    assert evaluation.score.value > 0.95
