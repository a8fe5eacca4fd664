"""What others rely on by name or number: ranges of settings, names on the wire, beginnings."""

from dataclasses import fields

import pytest

from ingero.contract.types import DetectionMode, Identity, NodeState
from ingero.core.health.baseline import Baseline, BaselinePolicy
from ingero.core.health.classifier import RECOVERY_DWELL, Classification, ClassifierPolicy, Closing
from ingero.core.health.lifecycle import FUTURE_TOLERANCE_S, Lifecycle, LifecyclePolicy
from ingero.core.health.modes import ModeDecision, ModePolicy, PushOutcome
from ingero.core.health.monitor import Evaluation, MonitorPolicy, NodeMonitor
from ingero.core.health.observation import GpuInfo, Observation
from ingero.core.health.recorded_score import MINUTE_NS
from ingero.core.health.score import ScorePolicy, Signals, Weights
from ingero.core.health.starvation import FORGET_AFTER, MAX_PROCESSES
from ingero.core.health.threshold import PanicReason, ThresholdPolicy
from ingero.core.health.throttle import ThrottleReason
from ingero.core.setting import declared, key_of


@pytest.mark.parametrize(
    ("policy", "settings"),
    [
        (
            BaselinePolicy,
            [
                ("fast_alpha", "0.1", "above 0 and below 1", None),
                ("floor_alpha", "0.001", "above 0 and below 1", None),
                ("warning_ratio", "0.5", "above 0, at most 1", None),
                ("warmup_samples", "30", "0 or more", "--warmup-samples"),
                ("floor_warmth_min", "0.01", "0 to below 1", None),
            ],
        ),
        (
            ClassifierPolicy,
            [
                ("hysteresis", "0.02", "0 to below 0.5", "--fleet-classifier-hysteresis"),
                ("confirmations", "3", "1 to 1000", "--confirmations"),
            ],
        ),
        (
            LifecyclePolicy,
            [
                ("idle_intervals", "3", "1 to 1048576", None),
                ("stale_read_failures", "3", "1 or more", None),
                ("recent_window", "0", "0 or more", None),
            ],
        ),
        (
            ScorePolicy,
            [
                ("degradation_zone", "0.35", "0 to 1", None),
                ("penalty_floor", "0.25", "0 to 1", None),
            ],
        ),
        (
            Weights,
            [
                ("throughput", "0.4", "above 0", None),
                ("compute", "0.25", "above 0", None),
                ("memory", "0.2", "above 0", None),
                ("cpu", "0.15", "above 0", None),
            ],
        ),
        (
            ThresholdPolicy,
            [
                ("k", "2", "1 to 4", None),
                ("ema_alpha", "0.2", "above 0, at most 1", None),
                ("min", "0.1", "0.1 to below 0.99", None),
                ("max", "0.9", "above 0.1, at most 0.99", None),
                ("min_gap", "0.02", "0 to below 0.5", None),
                ("statistical_min", "5", "1 or more", None),
                ("coverage_fraction", "0.8", "0 to 1", None),
                ("push_interval", "10s", "1s to 1h", None),
                ("ttl_multiplier", "5", "2 to 1000", None),
            ],
        ),
    ],
)
def test_settings_have_their_defaults_ranges_and_flags(
    policy: type, settings: list[tuple[str, str, str, str | None]]
) -> None:
    found = [
        (key_of(each), declared(each).text(each.default), declared(each).allowed(),
         declared(each).flag)
        for each in fields(policy)
        if "setting" in each.metadata
    ]  # fmt: skip
    assert found == settings


@pytest.mark.parametrize(
    ("names", "values"),
    [
        (PushOutcome, "ok transport auth server_error shed refused"),
        (Closing, "recovered left_active mode_lost shutdown"),
        (PanicReason, "majority_below median_fell"),
        (ThrottleReason, "power thermal sw hw"),
    ],
)
def test_names_that_logs_metrics_and_lines_carry(names: type, values: str) -> None:
    assert [each.value for each in names] == values.split()  # type: ignore[attr-defined]


def test_limits_in_seconds_and_numbers() -> None:
    assert (FUTURE_TOLERANCE_S, RECOVERY_DWELL, MINUTE_NS) == (60.0, 6, 60 * 10**9)
    assert (FORGET_AFTER, MAX_PROCESSES) == (30, 1024)
    policy = ModePolicy()
    assert (policy.push_interval_s, policy.cached_max_age_s) == (5.0, 300.0)
    assert policy.local_baseline_factor == 0.85


def test_every_state_begins_empty() -> None:
    assert Classification() == Classification(
        episode=None, since_ns=0, sequence=0, recent=(), above=0, raised=False, closing=None,
        closed=None,
    )  # fmt: skip
    assert Lifecycle() == Lifecycle(
        state=NodeState.CALIBRATING, failures=0, zeros=0, samples=0, woke=False, recent=()
    )
    zero = Signals(0.0, 0.0, 0.0, 0.0)
    assert Baseline() == Baseline(sample_count=0, fast=zero, floor=zero, counts=(0, 0, 0, 0))
    none = ModeDecision(DetectionMode.NONE)
    assert none == ModeDecision(DetectionMode.NONE, None, may_raise=False)
    assert Evaluation(state=NodeState.STALE, decision=none) == Evaluation(
        state=NodeState.STALE, decision=none, score=None, is_degraded=False, report=None,
        dominant="unknown", message=None, raised=False, closing=None, is_host_load_only=False,
    )  # fmt: skip
    seen = Observation(at_s=1.0, launches=1)
    assert (seen.totals_since_ns, seen.evicted_cgroups, seen.problem) == (0, 0, "")
    monitor = NodeMonitor(Identity(node="n", cluster="c"), MonitorPolicy())
    assert (monitor.workload, monitor.backoff_s, monitor.failures) == ("unknown", 0.0, 0)


def test_the_label_of_gpus_has_their_number_when_there_are_several() -> None:
    assert GpuInfo("NVIDIA H100", 1).label == "NVIDIA H100"
    assert GpuInfo("NVIDIA H100", 8).label == "8 x NVIDIA H100"
