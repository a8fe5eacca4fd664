"""What a monitor tells others: heartbeats and reports, and how long it keeps its baseline."""

import pytest
from tests.support.monitor_driver import HEALTHY, SLOW, START_NS, Driver, straggling

from ingero.contract.straggler import Heartbeat
from ingero.contract.types import NodeState
from ingero.core.health.modes import PushOutcome
from ingero.core.health.monitor import BASELINE_HOLD_S
from ingero.core.health.observation import GpuInfo, Observation
from ingero.core.health.score import Signals


def test_a_heartbeat_tells_state_mode_and_score() -> None:
    driver, at = Driver(warmup=3), "1970-01-01T00:00:00.500000000Z"
    assert driver.monitor.heartbeat(500_000_000) == Heartbeat(
        node_id="n1", cluster_id="c", timestamp=at, state="calibrating", detection_mode="none",
        score=None,
    )  # fmt: skip
    score = driver.ticks(5, HEALTHY).score
    assert score is not None
    assert driver.monitor.heartbeat(500_000_000) == Heartbeat(
        node_id="n1", cluster_id="c", timestamp=at, state="active", detection_mode="fleet",
        score=score.value,
    )  # fmt: skip
    driver.tick(None)
    assert driver.monitor.heartbeat(0).score is None


def observed(signals: Signals, **fields: object) -> Observation:
    return Observation(at_s=START_NS / 1e9, launches=600, signals=signals, **fields)  # type: ignore[arg-type]


def test_a_report_has_the_score_its_signals_and_the_gpus() -> None:
    driver = Driver()
    driver.tick(HEALTHY)
    gpu = GpuInfo("NVIDIA H100", 8)
    found = driver.monitor.observe(
        observed(Signals(*HEALTHY), gpu=gpu, totals_since_ns=7), 20.0, START_NS
    )
    report = found.report
    assert report is not None and found.score is not None
    assert report.score == found.score.value == pytest.approx(0.97)
    assert report.signals == pytest.approx(dict(Signals(1.0, 0.95, 0.95, 0.95).items()))
    assert (report.gpu_model, report.gpu_count, report.totals_since_ns) == ("NVIDIA H100", 8, 7)
    assert (report.is_degraded, report.fleet_reachable) == (False, True)
    assert not found.raised and found.closing is None


def test_a_report_without_signals_has_no_score() -> None:
    driver = Driver()
    driver.tick(HEALTHY)
    found = driver.monitor.observe(observed(Signals()), 20.0, START_NS)
    assert found.report is not None
    assert (found.report.score, found.report.signals, found.report.gpu_model) == (None, {}, None)


def test_an_edge_is_told_once_also_before_the_reply() -> None:
    driver = straggling()
    assert driver.monitor.classification.raised
    again = driver.monitor.observe(observed(Signals(*SLOW)), driver.now_s + 10, START_NS)
    assert (again.raised, again.closing) == (False, None)


def test_the_wall_clock_decides_whether_a_reading_is_from_the_future() -> None:
    driver = Driver()
    early = driver.monitor.observe(observed(Signals(*HEALTHY)), 1.0, START_NS - 61 * 10**9)
    assert driver.monitor.lifecycle.failures == 1
    assert early.state is NodeState.CALIBRATING
    driver.monitor.observe(observed(Signals(*HEALTHY)), 2.0, START_NS - 59 * 10**9)
    assert driver.monitor.lifecycle.failures == 0


def test_the_pause_that_fleet_asked_for_lasts_until_the_next_answer() -> None:
    monitor = Driver().monitor
    monitor.push_finished(PushOutcome.SHED, 30.0)
    assert monitor.backoff_s == 30.0
    monitor.push_finished(PushOutcome.OK, None)
    assert monitor.backoff_s == 0.0


def test_the_score_of_the_baseline_moves_by_a_tenth_and_only_while_healthy() -> None:
    driver = Driver(warmup=3)
    driver.ticks(4, HEALTHY)
    assert driver.monitor.baseline_score == pytest.approx(0.97)
    driver.tick((100.0, 0.85, 0.95, 0.95))
    assert driver.monitor.baseline_score == pytest.approx(0.97 - 0.1 * 0.025)
    kept = driver.monitor.baseline_score
    driver.tick(SLOW)
    assert driver.monitor.baseline_score == kept


@pytest.mark.parametrize(("after_s", "is_kept"), [(-1.0, True), (0.0, False)])
def test_the_baseline_of_a_slow_node_is_kept_for_exactly_half_an_hour(
    after_s: float, is_kept: bool
) -> None:
    assert BASELINE_HOLD_S == 1800
    driver = straggling()
    before = driver.monitor.baseline
    driver.tick(SLOW, step_s=BASELINE_HOLD_S + after_s)
    assert (driver.monitor.baseline == before) is is_kept


def test_a_baseline_is_kept_from_its_last_sample_of_warming_up_on() -> None:
    for samples, is_kept in ((2, False), (3, True)):
        driver = straggling()
        counts = (samples,) * 4
        baseline = driver.monitor.baseline
        driver.monitor.baseline = type(baseline)(
            sample_count=samples, fast=baseline.fast, floor=baseline.floor, counts=counts
        )
        before = driver.monitor.baseline
        driver.tick(SLOW)
        assert (driver.monitor.baseline == before) is is_kept
