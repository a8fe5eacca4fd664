"""The lifecycle of a node as its agent sees it: calibrating, active, idle, stale."""

from dataclasses import dataclass, replace

from ingero.contract.types import NodeState
from ingero.core.setting import check_settings, setting

FUTURE_TOLERANCE_S = 60.0  # a sample with a later timestamp is a failed read


@dataclass(frozen=True, slots=True, kw_only=True)
class LifecyclePolicy:
    """How many readings make a node idle or stale; its baseline says when it is active."""

    idle_intervals: int = setting(
        3, range=(1, 1 << 20), help="Observations in a row without work before a node is idle."
    )
    stale_read_failures: int = setting(
        3, range=(1, None), help="Failed reads in a row before a node is stale."
    )
    recent_window: int = setting(
        0,
        range=(0, None),
        computed="4 × `idle_intervals`",
        help="Observations that are kept for diagnostics.",
    )

    def __post_init__(self) -> None:
        check_settings(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Number of kernel launches at one time; `launches` is None after a failed read."""

    at_s: float
    launches: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifecycle:
    """The lifecycle state of a node, with its counters.

    A node with a restored baseline starts ACTIVE.
    """

    state: NodeState = NodeState.CALIBRATING
    failures: int = 0
    zeros: int = 0
    samples: int = 0
    woke: bool = False  # this reading ended an idle or stale period; the old baseline is void
    recent: tuple[tuple[float, int], ...] = ()


def update_lifecycle(
    life: Lifecycle, reading: Reading, now_s: float, policy: LifecyclePolicy, warmup_samples: int
) -> Lifecycle:
    """Return the lifecycle after one more reading.

    A node is active after `warmup_samples` with work in them, as many as its baseline asks for.
    """
    life = replace(life, woke=False)
    if reading.launches is None or reading.at_s - now_s > FUTURE_TOLERANCE_S:
        return _after_failure(life, policy)
    launches = max(reading.launches, 0)
    keep = policy.recent_window or policy.idle_intervals * 4
    life = replace(life, failures=0, recent=(*life.recent, (reading.at_s, launches))[-keep:])
    match life.state:
        case NodeState.STALE:
            return _calibrate(replace(life, woke=True), launches, warmup_samples)
        case NodeState.IDLE if launches > 0:
            return _calibrate(replace(life, woke=True), launches, warmup_samples)
        case NodeState.CALIBRATING:
            return _calibrate(life, launches, warmup_samples)
        case NodeState.ACTIVE:
            zeros = life.zeros + 1 if launches == 0 else 0
            state = NodeState.IDLE if zeros >= policy.idle_intervals else NodeState.ACTIVE
            return replace(life, state=state, zeros=0 if state is NodeState.IDLE else zeros)
    return life


def _after_failure(life: Lifecycle, policy: LifecyclePolicy) -> Lifecycle:
    failures = life.failures + 1
    if life.state is not NodeState.STALE and failures >= policy.stale_read_failures:
        return replace(life, state=NodeState.STALE, failures=failures, zeros=0, samples=0)
    return replace(life, failures=failures)


def _calibrate(life: Lifecycle, launches: int, warmup_samples: int) -> Lifecycle:
    """Count a calibration sample.

    Samples without launches do not count: a node idle since boot must not become active with a zero
    baseline.
    """
    samples = life.samples + (launches > 0)
    if not life.woke and samples >= warmup_samples:  # never active in the reading that wakes it
        return replace(life, state=NodeState.ACTIVE, samples=0, zeros=0)
    return replace(life, state=NodeState.CALIBRATING, samples=samples, zeros=0)


def recent_launches(life: Lifecycle, since_s: float) -> int:
    """Return the sum of launches in the kept readings since `since_s`."""
    return sum(launches for at_s, launches in life.recent if at_s >= since_s)
