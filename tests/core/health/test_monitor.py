"""The node monitor: the published loop vector, failed reads, episodes and how they end."""

import pytest
from tests.support.monitor_driver import HEALTHY, SLOW, START_NS, Driver, straggling

from ingero.contract.straggler import StragglerResolved, StragglerState
from ingero.contract.threshold import COLD_START, Delivery, ServedThreshold
from ingero.contract.types import DetectionMode, NodeState
from ingero.core.health.classifier import Closing
from ingero.core.health.modes import PushOutcome
from ingero.core.health.observation import Observation
from ingero.core.health.score import Signals


def alone(confirmations: int = 3, signals: tuple[float | None, ...] = HEALTHY) -> Driver:
    """Return a warm node whose Fleet never answered."""
    driver = Driver(warmup=5, confirmations=confirmations)
    for _ in range(8):
        driver.monitor.push_finished(PushOutcome.TRANSPORT, None)
        evaluation = driver.tick(signals, threshold=None)
    assert evaluation.decision.mode is DetectionMode.LOCAL_BASELINE
    return driver


@pytest.mark.parametrize(
    "busy", [(100.0, 0.95, 0.95, 0.0), (100.0, 0.95, 0.05, 0.95), (100.0, 0.95, 0.0, 0.0)]
)
def test_without_peers_a_busy_host_makes_no_straggler(busy: tuple[float, ...]) -> None:
    """The score falls to half; the work of this node does not."""
    driver = alone()
    evaluation = driver.ticks(10, busy, threshold=None)
    assert evaluation.score is not None and evaluation.decision.threshold is not None
    assert evaluation.score.value < evaluation.decision.threshold
    assert (evaluation.message, evaluation.is_host_load_only) == (None, True)
    assert not driver.tick(HEALTHY, threshold=None).is_host_load_only


def test_without_peers_less_work_makes_one_on_a_busy_host_too() -> None:
    driver = alone()
    evaluation = driver.ticks(3, (30.0, 0.95, 0.95, 0.0), threshold=None)
    assert evaluation.raised and not evaluation.is_host_load_only
    still = driver.ticks(8, (30.0, 0.95, 0.95, 0.95), threshold=None)
    assert still.message is not None and isinstance(still.message.line, StragglerState)
    while_busy = driver.ticks(2, (100.0, 0.95, 0.95, 0.0), threshold=None)
    assert while_busy.closing is None or while_busy.closing is Closing.RECOVERED
    assert not driver.monitor.classification.is_straggler, (
        "its work has recovered, whatever else the host does"
    )


def test_without_peers_and_without_work_signals_no_episode_is_raised() -> None:
    driver = alone(signals=(None, None, 0.9, 0.9))
    evaluation = driver.ticks(10, (None, None, 0.9, 0.0), threshold=None)
    assert (evaluation.message, evaluation.is_host_load_only) == (None, True)


def test_with_a_threshold_of_peers_host_load_still_counts() -> None:
    """The published score counts: peers on equally busy hosts would have lowered the threshold."""
    driver = Driver(warmup=5)
    driver.ticks(8, HEALTHY)
    assert driver.tick((100.0, 0.95, 0.95, 0.0)).raised


def test_published_loop_vector_70() -> None:
    driver = Driver()
    evaluations = [driver.tick(raw) for raw in ((50, 0.5, 0.5, 0.5), (50, 0.5, 0.5, 0.5), HEALTHY)]
    assert [t.score.value for t in evaluations if t.score] == pytest.approx([0.15, 0.70, 0.97])
    assert [t.message.event.is_straggler for t in evaluations if t.message] == [True, True, False]
    lines = [t.message.line for t in evaluations if t.message]
    assert [type(line) for line in lines] == [StragglerState, StragglerState, StragglerResolved]


def test_bug_a_failed_read_is_skipped_entirely() -> None:
    """The reference scored, pushed and folded zeros: one read error raised a false straggler."""
    driver = Driver(warmup=3)
    driver.ticks(5, HEALTHY)
    before = driver.monitor.baseline
    failed = driver.tick(None)
    assert (failed.score, failed.report, failed.message) == (None, None, None)
    assert driver.monitor.baseline == before
    assert driver.monitor.lifecycle.state is NodeState.ACTIVE


def test_nothing_is_pushed_while_stale_and_on_the_tick_that_wakes() -> None:
    driver = Driver(warmup=3)
    driver.ticks(5, HEALTHY)
    assert driver.ticks(3, None).state is NodeState.STALE
    assert driver.tick(None).report is None
    waking = driver.tick((40.0, 0.9, 0.9, 0.9))
    assert (waking.state, waking.report) == (NodeState.CALIBRATING, None)
    assert driver.monitor.baseline.sample_count == 1  # this sample starts a new baseline
    assert driver.tick((40.0, 0.9, 0.9, 0.9)).report is not None


def test_idle_and_calibrating_nodes_push_and_are_never_classified_f052() -> None:
    driver = Driver(warmup=30)
    evaluation = driver.ticks(20, (1.0, 0.1, 0.1, 0.1))
    assert (evaluation.state, evaluation.message) == (NodeState.CALIBRATING, None)
    assert evaluation.report is not None
    idle = Driver(warmup=1, confirmations=3)
    idle.ticks(3, HEALTHY)
    evaluation = idle.ticks(3, (0.0, 0.0, 0.9, 0.9), launches=0)
    assert (evaluation.state, evaluation.message) == (NodeState.IDLE, None)
    assert evaluation.report is not None


def test_a_calibrating_node_knows_how_many_samples_it_needs() -> None:
    driver = Driver(warmup=5)
    left = []
    for _ in range(7):
        left.append(driver.monitor.samples_left)
        driver.tick(HEALTHY)
    assert left[:5] == [5, 4, 3, 2, 1]
    assert left[5:] == [None, None], "an active node needs none"


def test_idle_time_does_not_change_the_baseline() -> None:
    driver = Driver(warmup=3)
    driver.ticks(50, (0.0, 0.0, 0.9, 0.9), launches=0)
    assert (driver.monitor.lifecycle.state, driver.monitor.baseline.sample_count) == (
        NodeState.CALIBRATING,
        0,
    )
    evaluation = driver.ticks(4, HEALTHY)
    assert (evaluation.state, evaluation.score and evaluation.score.signals.throughput) == (
        NodeState.ACTIVE,
        pytest.approx(1.0),
    )


def test_bug_going_idle_closes_the_episode() -> None:
    driver = straggling()
    closing = driver.ticks(3, SLOW, launches=0)
    assert (closing.state, closing.closing) == (NodeState.IDLE, Closing.LEFT_ACTIVE)
    assert isinstance(closing.message and closing.message.line, StragglerResolved)
    assert closing.message.line.reason == "left_active"


def test_bug_becoming_stale_closes_the_episode() -> None:
    closing = straggling().ticks(3, None)
    assert closing.message is not None
    assert isinstance(closing.message.line, StragglerResolved)


def test_bug_losing_the_mode_closes_the_episode() -> None:
    driver = straggling()
    driver.monitor.baseline = driver.monitor.baseline.__class__()  # cold: no local limit either
    closing = driver.tick(SLOW, threshold=None, step_s=3600.0)
    assert (closing.decision.mode, closing.closing) == (DetectionMode.NONE, Closing.MODE_LOST)


def test_bug_shutting_down_closes_the_episode() -> None:
    driver = straggling()
    message = driver.monitor.shut_down(START_NS)
    assert message is not None
    assert isinstance(message.line, StragglerResolved)
    assert (message.line.reason, message.event.is_straggler) == ("shutdown", False)
    assert driver.monitor.shut_down(START_NS) is None


def test_both_channels_share_one_id_through_the_episode() -> None:
    driver = straggling(rank=0, world_size=8)
    ids = set()
    for evaluation in (driver.tick(SLOW), driver.tick(SLOW), driver.tick(HEALTHY)):
        assert evaluation.message is not None
        ids |= {evaluation.message.line.event_id, evaluation.message.event.event_id}
        assert (evaluation.message.line.rank, evaluation.message.line.world_size) == (0, 8)
    assert len(ids) == 1


def test_a_lasting_slowdown_does_not_change_the_baseline() -> None:
    """A baseline that follows the slow node would give 0.96 after thirty samples."""
    driver = straggling()
    evaluation = driver.ticks(100, SLOW)
    assert evaluation.score is not None
    assert evaluation.score.signals.throughput == pytest.approx(0.3)
    assert driver.monitor.classification.is_straggler
    score = driver.ticks(2, HEALTHY).score
    assert score is not None and score.value == pytest.approx(0.97)  # as before the slowdown


def test_after_half_an_hour_the_new_level_may_become_normal() -> None:
    driver = straggling()
    evaluation = driver.ticks(300, SLOW)
    assert evaluation.score is not None
    assert evaluation.score.signals.throughput is not None
    assert evaluation.score.signals.throughput > 0.9


def test_a_score_is_classified_by_the_threshold_of_its_own_reply() -> None:
    """All nodes slow down: the score is below the old threshold and above the one in the reply."""
    driver = Driver(warmup=3)
    driver.ticks(5, HEALTHY, threshold=0.90)
    driver.now_s += 10.0
    now_ns = START_NS + int(driver.now_s * 1e9)
    observation = Observation(at_s=now_ns / 1e9, launches=600, signals=Signals(*SLOW))
    observed = driver.monitor.observe(observation, driver.now_s, now_ns)
    assert observed.message is None
    assert observed.report is not None
    driver.monitor.threshold_received(Delivery.HIT, ServedThreshold(0.30, True), driver.now_s)
    judged = driver.monitor.classify(driver.now_s, now_ns)
    assert judged is not None
    assert (judged.raised, judged.decision.threshold) == (False, 0.30)
    assert driver.monitor.classify(driver.now_s, now_ns) is None  # once per observation


def test_three_confirmations_by_default() -> None:
    driver = Driver(warmup=3, confirmations=3)
    driver.ticks(5, HEALTHY)
    assert [driver.tick(SLOW).raised for _ in range(4)] == [False, False, True, False]


def test_dominant_signal_compares_rate_with_rate() -> None:
    driver = Driver(warmup=3)
    driver.ticks(5, (5000.0, 0.95, 0.95, 0.95))
    evaluation = driver.tick((4900.0, 0.30, 0.95, 0.95))
    assert evaluation.dominant == "compute"


def test_outage_modes_f017() -> None:
    driver = Driver(warmup=3)
    driver.ticks(5, HEALTHY)
    seen = [driver.tick(HEALTHY).decision.mode]
    for _ in range(45):
        driver.monitor.push_finished(PushOutcome.TRANSPORT, None)
        mode = driver.tick(HEALTHY, threshold=None).decision.mode
        seen += [mode] if mode is not seen[-1] else []
    assert seen == [
        DetectionMode.FLEET,
        DetectionMode.LOCAL_CACHED,
        DetectionMode.LOCAL_BASELINE,
    ]
    driver.monitor.push_finished(PushOutcome.OK, None)
    assert driver.tick(HEALTHY).decision.mode is DetectionMode.FLEET


def test_reachability_vector_65() -> None:
    monitor = Driver().monitor
    seen = []
    for outcome in "EEEOEEE":
        monitor.push_finished(PushOutcome.SERVER_ERROR if outcome == "E" else PushOutcome.OK, None)
        seen.append(monitor.is_reachable)
    assert seen == [True, True, False, True, True, True, False]


@pytest.mark.parametrize("outcome", [PushOutcome.SHED, PushOutcome.REFUSED])
def test_bug_an_answer_is_not_an_outage(outcome: PushOutcome) -> None:
    """The reference counted 400 and 429 toward unreachable, although Fleet had answered."""
    monitor = Driver().monitor
    for _ in range(10):
        monitor.push_finished(outcome, None)
    assert monitor.is_reachable


def test_bug_cold_start_by_header_and_by_poll_mean_the_same() -> None:
    monitor = Driver().monitor
    monitor.threshold_received(Delivery.HIT, ServedThreshold(0.88, True), 1.0)
    monitor.threshold_received(Delivery.HIT, COLD_START, 2.0)
    monitor.threshold_polled(None, 3.0)
    assert monitor.delivery.threshold is not None
    assert monitor.delivery.threshold.value == 0.88


def test_a_rejected_header_keeps_the_old_value_vectors_47_49() -> None:
    monitor = Driver().monitor
    monitor.threshold_received(Delivery.HIT, ServedThreshold(0.82, True), 1.0)
    monitor.threshold_received(Delivery.REJECTED, None, 2.0)
    assert monitor.delivery.threshold is not None
    assert (monitor.delivery.threshold.value, monitor.delivery.header_at_s) == (0.82, 2.0)
    monitor.threshold_received(Delivery.MISS, None, 3.0)
    assert monitor.delivery.header_at_s is None


def test_missing_signals_are_not_zeros() -> None:
    driver = Driver(warmup=1)
    driver.ticks(3, HEALTHY)
    driver.now_s += 10
    observation = Observation(
        at_s=START_NS / 1e9, launches=600, signals=Signals(100.0, None, None, 0.95)
    )
    evaluation = driver.evaluate(observation, START_NS)
    assert evaluation.score is not None
    assert evaluation.score.value > 0.95
