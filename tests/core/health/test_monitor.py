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
from ingero.core.health.monitor import Brain, BrainPolicy, Thought
from ingero.core.health.observation import Observation
from ingero.core.health.score import Signals

HEALTHY = (100.0, 0.95, 0.95, 0.95)
SLOW = (30.0, 0.95, 0.95, 0.95)
START_NS = 1_794_709_942_000_000_000


class Life:
    """A brain and its clock; every tick hears the same threshold again unless told otherwise."""

    def __init__(self, warmup: int = 0, confirmations: int = 1, **identity: Any) -> None:
        policy = BrainPolicy(
            baseline=BaselinePolicy(warmup_samples=warmup),
            lifecycle=LifecyclePolicy(warmup_samples=warmup),
            modes=ModePolicy(push_interval_s=10.0),
            classifier=ClassifierPolicy(confirmations=confirmations),
        )
        self.brain = Brain(Identity(**({"node": "n1", "cluster": "c"} | identity)), policy)
        self.now_s = 0.0

    def tick(
        self,
        signals: tuple[float, ...] | None,
        threshold: float | None = 0.80,
        launches: int = 600,
        step_s: float = 10.0,
    ) -> Thought:
        self.now_s += step_s
        if threshold is not None:
            self.brain.heard(Delivery.HIT, ServedThreshold(threshold, True), self.now_s)
        now_ns = START_NS + int(self.now_s * 1e9)
        look = Observation(
            at_s=now_ns / 1e9,
            launches=None if signals is None else launches,
            signals=Signals(*signals) if signals else Signals(),
        )
        return self.think(look, now_ns)

    def think(self, look: Observation, now_ns: int) -> Thought:
        """Both halves at once."""
        thought = self.brain.observe(look, self.now_s, now_ns)
        return self.brain.judge(self.now_s, now_ns) or thought

    def ticks(self, count: int, signals: tuple[float, ...] | None, **options: Any) -> Thought:
        for _ in range(count):
            thought = self.tick(signals, **options)
        return thought


def alone(confirmations: int = 3, signals: tuple[float | None, ...] = HEALTHY) -> Life:
    """A warm node whose Fleet never answered."""
    life = Life(warmup=5, confirmations=confirmations)
    for _ in range(8):
        life.brain.pushed(PushOutcome.TRANSPORT, None)
        thought = life.tick(signals, threshold=None)
    assert thought.decision.mode is DetectionMode.LOCAL_BASELINE
    return life


@pytest.mark.parametrize(
    "busy", [(100.0, 0.95, 0.95, 0.0), (100.0, 0.95, 0.05, 0.95), (100.0, 0.95, 0.0, 0.0)]
)
def test_without_peers_a_busy_host_makes_no_straggler(busy: tuple[float, ...]) -> None:
    """The score falls to half; the work of this node does not."""
    life = alone()
    thought = life.ticks(10, busy, threshold=None)
    assert thought.score is not None and thought.decision.threshold is not None
    assert thought.score.value < thought.decision.threshold
    assert (thought.emission, thought.is_spared) == (None, True)
    assert not life.tick(HEALTHY, threshold=None).is_spared


def test_without_peers_less_work_makes_one_on_a_busy_host_too() -> None:
    life = alone()
    thought = life.ticks(3, (30.0, 0.95, 0.95, 0.0), threshold=None)
    assert thought.raised and not thought.is_spared
    still = life.ticks(8, (30.0, 0.95, 0.95, 0.95), threshold=None)
    assert still.emission is not None and isinstance(still.emission.line, StragglerState)
    while_busy = life.ticks(2, (100.0, 0.95, 0.95, 0.0), threshold=None)
    assert while_busy.closing is None or while_busy.closing is Closing.RECOVERED
    assert not life.brain.classification.is_straggler, (
        "its work is back, whatever else the host does"
    )


def test_without_peers_and_without_a_sign_of_work_nobody_is_named() -> None:
    life = alone(signals=(None, None, 0.9, 0.9))
    thought = life.ticks(10, (None, None, 0.9, 0.0), threshold=None)
    assert (thought.emission, thought.is_spared) == (None, True)


def test_with_a_line_of_peers_load_still_counts() -> None:
    """The published score, unchanged: peers on equally busy hosts have moved the line."""
    life = Life(warmup=5)
    life.ticks(8, HEALTHY)
    assert life.tick((100.0, 0.95, 0.95, 0.0)).raised


def test_published_loop_vector_70() -> None:
    life = Life()
    thoughts = [life.tick(raw) for raw in ((50, 0.5, 0.5, 0.5), (50, 0.5, 0.5, 0.5), HEALTHY)]
    assert [t.score.value for t in thoughts if t.score] == pytest.approx([0.15, 0.70, 0.97])
    assert [t.emission.event.is_straggler for t in thoughts if t.emission] == [True, True, False]
    lines = [t.emission.line for t in thoughts if t.emission]
    assert [type(line) for line in lines] == [StragglerState, StragglerState, StragglerResolved]


def test_bug_a_failed_look_is_skipped_entirely() -> None:
    """The reference scored, pushed and folded an all-zero observation: one read error was a false straggler."""
    life = Life(warmup=3)
    life.ticks(5, HEALTHY)
    before = life.brain.baseline
    failed = life.tick(None)
    assert (failed.score, failed.report, failed.emission) == (None, None, None)
    assert life.brain.baseline == before
    assert life.brain.life.state is NodeState.ACTIVE


def test_nothing_is_pushed_while_stale_and_on_the_tick_that_wakes() -> None:
    life = Life(warmup=3)
    life.ticks(5, HEALTHY)
    assert life.ticks(3, None).state is NodeState.STALE
    assert life.tick(None).report is None
    waking = life.tick((40.0, 0.9, 0.9, 0.9))
    assert (waking.state, waking.report) == (NodeState.CALIBRATING, None)
    assert (
        life.brain.baseline.sample_count == 1
    )  # the old baseline is gone, this sample begins the new one
    assert life.tick((40.0, 0.9, 0.9, 0.9)).report is not None


def test_idle_and_calibrating_nodes_push_and_are_never_judged_f052() -> None:
    life = Life(warmup=30)
    thought = life.ticks(20, (1.0, 0.1, 0.1, 0.1))
    assert (thought.state, thought.emission) == (NodeState.CALIBRATING, None)
    assert thought.report is not None
    idle = Life(warmup=1, confirmations=3)
    idle.ticks(3, HEALTHY)
    thought = idle.ticks(3, (0.0, 0.0, 0.9, 0.9), launches=0)
    assert (thought.state, thought.emission) == (NodeState.IDLE, None)
    assert thought.report is not None


def test_rest_does_not_become_usual() -> None:
    life = Life(warmup=3)
    life.ticks(50, (0.0, 0.0, 0.9, 0.9), launches=0)
    assert (life.brain.life.state, life.brain.baseline.sample_count) == (NodeState.CALIBRATING, 0)
    thought = life.ticks(4, HEALTHY)
    assert (thought.state, thought.score and thought.score.signals.throughput) == (
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
    assert isinstance(closing.emission and closing.emission.line, StragglerResolved)
    assert closing.emission.line.reason == "left_active"


def test_bug_becoming_stale_closes_the_episode() -> None:
    closing = straggling().ticks(3, None)
    assert closing.emission is not None
    assert isinstance(closing.emission.line, StragglerResolved)


def test_bug_losing_the_mode_closes_the_episode() -> None:
    life = straggling()
    life.brain.baseline = life.brain.baseline.__class__()  # cold: no local line either
    closing = life.tick(SLOW, threshold=None, step_s=3600.0)
    assert (closing.decision.mode, closing.closing) == (DetectionMode.NONE, Closing.MODE_LOST)


def test_bug_shutting_down_closes_the_episode() -> None:
    life = straggling()
    emission = life.brain.shut_down(START_NS)
    assert emission is not None
    assert isinstance(emission.line, StragglerResolved)
    assert (emission.line.reason, emission.event.is_straggler) == ("shutdown", False)
    assert life.brain.shut_down(START_NS) is None


def test_both_channels_share_one_id_through_the_episode() -> None:
    life = straggling(rank=0, world_size=8)
    ids = set()
    for thought in (life.tick(SLOW), life.tick(SLOW), life.tick(HEALTHY)):
        assert thought.emission is not None
        ids |= {thought.emission.line.event_id, thought.emission.event.event_id}
        assert (thought.emission.line.rank, thought.emission.line.world_size) == (0, 8)
    assert len(ids) == 1


def test_a_lasting_slowness_does_not_heal_itself() -> None:
    """A reference that follows the slow node would read 0.96 of normal after thirty samples."""
    life = straggling()
    thought = life.ticks(100, SLOW)
    assert thought.score is not None
    assert thought.score.signals.throughput == pytest.approx(0.3)
    assert life.brain.classification.is_straggler
    assert life.ticks(2, HEALTHY).score.value == pytest.approx(0.97)  # type: ignore[union-attr] # it was healthy before


def test_after_half_an_hour_the_new_level_may_become_normal() -> None:
    life = straggling()
    thought = life.ticks(300, SLOW)
    assert thought.score is not None
    assert thought.score.signals.throughput is not None
    assert thought.score.signals.throughput > 0.9


def test_the_line_that_came_with_the_reply_is_the_one_that_judges() -> None:
    """A whole fleet fell: the score is far below the line the node knew, and above the one its push brought back."""
    life = Life(warmup=3)
    life.ticks(5, HEALTHY, threshold=0.90)
    life.now_s += 10.0
    now_ns = START_NS + int(life.now_s * 1e9)
    look = Observation(at_s=now_ns / 1e9, launches=600, signals=Signals(*SLOW))
    observed = life.brain.observe(look, life.now_s, now_ns)
    assert observed.emission is None
    assert observed.report is not None
    life.brain.heard(Delivery.HIT, ServedThreshold(0.30, True), life.now_s)
    judged = life.brain.judge(life.now_s, now_ns)
    assert judged is not None
    assert (judged.raised, judged.decision.threshold) == (False, 0.30)
    assert life.brain.judge(life.now_s, now_ns) is None  # once per look


def test_three_confirmations_by_default() -> None:
    life = Life(warmup=3, confirmations=3)
    life.ticks(5, HEALTHY)
    assert [life.tick(SLOW).raised for _ in range(4)] == [False, False, True, False]


def test_dominant_signal_compares_rate_with_rate() -> None:
    life = Life(warmup=3)
    life.ticks(5, (5000.0, 0.95, 0.95, 0.95))
    thought = life.tick((4900.0, 0.30, 0.95, 0.95))
    assert thought.dominant == "compute"


def test_outage_modes_f017() -> None:
    life = Life(warmup=3)
    life.ticks(5, HEALTHY)
    seen = [life.tick(HEALTHY).decision.mode]
    for _ in range(45):
        life.brain.pushed(PushOutcome.TRANSPORT, None)
        mode = life.tick(HEALTHY, threshold=None).decision.mode
        seen += [mode] if mode is not seen[-1] else []
    assert seen == [
        DetectionMode.FLEET,
        DetectionMode.LOCAL_CACHED,
        DetectionMode.LOCAL_BASELINE,
    ]
    life.brain.pushed(PushOutcome.OK, None)
    assert life.tick(HEALTHY).decision.mode is DetectionMode.FLEET


def test_reachability_vector_65() -> None:
    brain = Life().brain
    seen = []
    for outcome in "EEEOEEE":
        brain.pushed(PushOutcome.SERVER_ERROR if outcome == "E" else PushOutcome.OK, None)
        seen.append(brain.is_reachable)
    assert seen == [True, True, False, True, True, True, False]


@pytest.mark.parametrize("outcome", [PushOutcome.SHED, PushOutcome.REFUSED])
def test_bug_an_answer_is_not_an_outage(outcome: PushOutcome) -> None:
    """The reference counted 400 and 429 toward unreachable, although Fleet had answered."""
    brain = Life().brain
    for _ in range(10):
        brain.pushed(outcome, None)
    assert brain.is_reachable


def test_bug_cold_start_by_header_and_by_poll_mean_the_same() -> None:
    brain = Life().brain
    brain.heard(Delivery.HIT, ServedThreshold(0.88, True), 1.0)
    brain.heard(Delivery.HIT, COLD_START, 2.0)
    brain.polled(None, 3.0)
    assert brain.delivery.threshold is not None
    assert brain.delivery.threshold.value == 0.88


def test_a_rejected_header_keeps_the_old_value_vectors_47_49() -> None:
    brain = Life().brain
    brain.heard(Delivery.HIT, ServedThreshold(0.82, True), 1.0)
    brain.heard(Delivery.REJECTED, None, 2.0)
    assert brain.delivery.threshold is not None
    assert (brain.delivery.threshold.value, brain.delivery.header_at_s) == (0.82, 2.0)
    brain.heard(Delivery.MISS, None, 3.0)
    assert brain.delivery.header_at_s is None


def test_missing_signals_are_not_zeros() -> None:
    life = Life(warmup=1)
    life.ticks(3, HEALTHY)
    life.now_s += 10
    look = Observation(at_s=START_NS / 1e9, launches=600, signals=Signals(100.0, None, None, 0.95))
    thought = life.think(look, START_NS)
    assert thought.score is not None
    assert thought.score.value > 0.95
