"""`ingero.yaml`: the settings of a node and of the command line, one file for all commands."""

import os
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import msgspec

from ingero.config.loader import LOG_LEVELS, load_file, setting
from ingero.contract.push.decode import problem_with_id
from ingero.contract.types import DetectionMode
from ingero.core.health.baseline import BaselinePolicy
from ingero.core.health.classifier import ClassifierPolicy
from ingero.core.health.lifecycle import LifecyclePolicy
from ingero.core.health.score import ScorePolicy, Weights
from ingero.errors import ConfigError
from ingero.storage.caller import home
from ingero.storage.trace.path import PATH_VARIABLE, default_path
from ingero.transport.endpoint import Protocol
from ingero.transport.private_files import check_private_file

CONFIG_VARIABLE = "INGERO_CONFIG"
PAGERDUTY_VARIABLE = "INGERO_PAGERDUTY_KEY"


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """The `agent` block."""

    node: str | None = None
    log_level: str = setting("info", choices=LOG_LEVELS)
    max_overhead_percent: float = setting(1.0, range=(0.1, 100.0))

    def __post_init__(self) -> None:
        if self.node is not None and (problem_with_id(self.node) or ":" in self.node):
            raise ConfigError(
                f"node {self.node!r} must be 1 to 253 printable characters without a colon"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetTlsConfig:
    """Files for the connection to Fleet. A certificate and its key come together; an authority may stand alone."""

    ca: Path | None = None
    cert: Path | None = None
    key: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetBlockConfig:
    """The `fleet` block: where to push, as whom, and which nodes a fan-out asks."""

    endpoint: str | None = None
    cluster_id: str | None = None
    node_id: str | None = None
    job_id: str | None = None
    role: str | None = None
    workload_type: str = "unknown"
    protocol: Protocol | None = None
    push_interval_s: float = setting(5.0, key="push_interval", duration=True, range=(1.0, 3600.0))
    timeout_s: float = setting(2.0, key="timeout", duration=True, range=(0.1, 300.0))
    threshold_url: str | None = None
    poll_interval_s: float = setting(10.0, key="poll_interval", duration=True, range=(1.0, 3600.0))
    insecure: bool = False
    failure_threshold: int = setting(3, range=(1, 1000))
    cached_max_age_s: float = setting(
        300.0, key="cached_max_age", duration=True, range=(1.0, 86400.0)
    )
    token_file: Path | None = None
    headers: dict[str, str] = field(default_factory=dict)
    tls: FleetTlsConfig = field(default_factory=FleetTlsConfig)
    world_size: int = setting(0, range=(0, 10_000_000))
    node_rank: int = setting(0, range=(0, 10_000_000))
    detection_mode: DetectionMode = DetectionMode.NONE
    nodes: tuple[str, ...] = ()
    ca_cert: Path | None = None
    client_cert: Path | None = None
    client_key: Path | None = None
    trusted: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.timeout_s > self.push_interval_s:
            raise ConfigError(
                f"timeout {self.timeout_s:g}s is longer than push_interval {self.push_interval_s:g}s; "
                "a push must end before the next"
            )
        if self.world_size and self.node_rank >= self.world_size:
            raise ConfigError(
                f"node_rank {self.node_rank} must be below world_size {self.world_size}"
            )
        if self.insecure and (self.tls.ca or self.tls.cert or self.tls.key):
            raise ConfigError("insecure and tls exclude each other; remove one")
        for name in ("cluster_id", "node_id", "job_id", "role", "workload_type"):
            value = getattr(self, name)
            if value is not None and problem_with_id(value):
                raise ConfigError(
                    f"{name} {value!r} must be 1 to 253 printable characters without spaces around them"
                )


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistenceConfig:
    """Where the baseline survives a restart, and how old it may be."""

    path: Path | None = None
    stale_age_s: float = setting(600.0, key="stale_age", duration=True, range=(0.0, 86400.0))


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthConfig:
    """The `health` block: how signals become a score, and a score a straggler."""

    weights: Weights = field(default_factory=Weights)
    degradation_zone: float = 0.35
    penalty_floor: float = 0.25
    baseline: BaselinePolicy = field(default_factory=BaselinePolicy)
    state: LifecyclePolicy = field(default_factory=LifecyclePolicy)
    classifier: ClassifierPolicy = field(default_factory=ClassifierPolicy)
    persistence: PersistenceConfig = field(default_factory=PersistenceConfig)

    def __post_init__(self) -> None:
        self.score_policy()

    def score_policy(self) -> ScorePolicy:
        """The part that core needs for a score; raises ConfigError where it does not fit together."""
        return ScorePolicy(
            weights=self.weights,
            degradation_zone=self.degradation_zone,
            penalty_floor=self.penalty_floor,
        )


class CollectivesFrom(StrEnum):
    """Where `fleet-push` takes collectives from; `auto` reads rings, and probes' records from the trace database."""

    AUTO = "auto"
    RINGS = "rings"
    DB = "db"
    OFF = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalsConfig:
    """The `signals` block: how the trace database is read."""

    window_s: float = setting(60.0, key="window", duration=True, range=(5.0, 3600.0))
    num_gpus: int = setting(0, range=(0, 1024))
    collectives: CollectivesFrom = CollectivesFrom.AUTO


@dataclass(frozen=True, slots=True, kw_only=True)
class RemediateConfig:
    """The `remediate` block: the Unix socket that says who is slow."""

    enabled: bool = False
    socket: Path | None = None
    gid: int = setting(65532, range=(-1, 2**31 - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class OtlpConfig:
    """The `otlp` block: where spans of episodes go."""

    enabled: bool = False
    endpoint: str | None = None
    insecure: bool | None = None  # None: plain text on this machine, TLS to any other

    def __post_init__(self) -> None:
        if self.enabled and not self.endpoint:
            raise ConfigError("enabled needs an endpoint, for example 127.0.0.1:4318")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """The `store` block: the trace database."""

    path: Path | None = None
    max_db_size: int = setting(10 << 30, size=True, range=(0, None))


@dataclass(frozen=True, slots=True, kw_only=True)
class IngeroConfig:
    """The whole file. Blocks typed `object` belong to other agents that read the same file."""

    agent: AgentConfig = field(default_factory=AgentConfig)
    fleet: FleetBlockConfig = field(default_factory=FleetBlockConfig)
    health: HealthConfig = field(default_factory=HealthConfig)
    signals: SignalsConfig = field(default_factory=SignalsConfig)
    remediate: RemediateConfig = field(default_factory=RemediateConfig)
    otlp: OtlpConfig = field(default_factory=OtlpConfig)
    store: StoreConfig = field(default_factory=StoreConfig)
    probes: object = None
    mcp: object = None
    alerter: object = None
    inference: object = None
    prometheus: object = None


def find_config() -> Path | None:
    """The file every command reads: $INGERO_CONFIG, ./ingero.yaml, /etc/ingero, ~/.config/ingero; first one wins."""
    given = os.environ.get(CONFIG_VARIABLE)
    if given:
        return Path(given)
    places = (
        Path("ingero.yaml"),
        Path("/etc/ingero/ingero.yaml"),
        home() / ".config" / "ingero" / "ingero.yaml",
    )
    return next((place for place in places if place.is_file()), None)


def load_ingero(path: Path | None = None) -> IngeroConfig:
    """The file at `path`, or the one `find_config` finds; defaults when there is none. Raises ConfigError."""
    found = path or find_config()
    return IngeroConfig() if found is None else load_file(IngeroConfig, found)


class _PagerDuty(msgspec.Struct):
    routing_key: str = ""


class _Alerter(msgspec.Struct):
    """What we read of a block that other agents define."""

    pagerduty: _PagerDuty = msgspec.field(default_factory=_PagerDuty)


def pagerduty_key() -> str | None:
    """By environment, else by `alerter.pagerduty.routing_key` of a file that only its owner can read."""
    given = os.environ.get(PAGERDUTY_VARIABLE)
    found = find_config()
    if given or found is None:
        return given or None
    alerter = load_ingero(found).alerter
    try:
        key = (
            msgspec.convert(alerter, _Alerter).pagerduty.routing_key if alerter is not None else ""
        )
    except msgspec.ValidationError as error:
        raise ConfigError(f"{found}: alerter: {error}") from None
    if key:
        check_private_file(found, "PagerDuty key in")
    return key or None


def trace_database(given: Path | None = None, config: IngeroConfig | None = None) -> Path:
    """The trace database every command means: the one given, else $INGERO_DB, `store.path`, `~/.ingero/ingero.db`."""
    if given is not None:
        return given
    if os.environ.get(PATH_VARIABLE):
        return default_path()
    return (config or load_ingero()).store.path or default_path()
