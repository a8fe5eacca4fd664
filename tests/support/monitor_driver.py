"""A node monitor with its clock, driven by hand."""

from typing import Any

from ingero.contract.threshold import Delivery, ServedThreshold
from ingero.contract.types import Identity
from ingero.core.health.baseline import BaselinePolicy
from ingero.core.health.classifier import ClassifierPolicy
from ingero.core.health.modes import ModePolicy
from ingero.core.health.monitor import Evaluation, MonitorPolicy, NodeMonitor
from ingero.core.health.observation import Observation
from ingero.core.health.score import Signals

HEALTHY = (100.0, 0.95, 0.95, 0.95)
SLOW = (30.0, 0.95, 0.95, 0.95)
START_NS = 1_794_709_942_000_000_000


class Driver:
    """A monitor and its clock. Each tick delivers the same threshold unless another is given."""

    def __init__(self, warmup: int = 0, confirmations: int = 1, **identity: Any) -> None:
        policy = MonitorPolicy(
            baseline=BaselinePolicy(warmup_samples=warmup),
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
        observation = Observation(
            at_s=now_ns / 1e9,
            launches=None if signals is None else launches,
            signals=Signals(*signals) if signals else Signals(),
        )
        return self.evaluate(observation, now_ns)

    def evaluate(self, observation: Observation, now_ns: int) -> Evaluation:
        """Do both halves of a tick."""
        evaluation = self.monitor.observe(observation, self.now_s, now_ns)
        return self.monitor.classify(self.now_s, now_ns) or evaluation

    def ticks(self, count: int, signals: tuple[float, ...] | None, **options: Any) -> Evaluation:
        for _ in range(count):
            evaluation = self.tick(signals, **options)
        return evaluation


def straggling(**options: Any) -> Driver:
    """Return a node in its first tick as a straggler."""
    driver = Driver(warmup=3, **options)
    driver.ticks(5, HEALTHY)
    assert driver.tick(SLOW).raised
    return driver
