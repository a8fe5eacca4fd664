"""The settings in `ingero.yaml`, the one file that every command on a node reads."""

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from ingero.config.ingero_agent import AgentConfig
from ingero.config.ingero_fleet import OWN_CONTEXT, ContextConfig, FleetBlockConfig
from ingero.config.merge import merged
from ingero.core.health.baseline import BaselinePolicy
from ingero.core.health.classifier import ClassifierPolicy
from ingero.core.health.lifecycle import LifecyclePolicy
from ingero.core.health.score import ScorePolicy, Weights
from ingero.core.inference.heartbeat import STALL_AFTER_S
from ingero.core.setting import same_setting, setting
from ingero.errors import ConfigError
from ingero.storage.caller import caller, home
from ingero.storage.runtime import running_service
from ingero.storage.trace.path import PATH_VARIABLE, default_path
from ingero.transport.private_files import check_private_file

CONFIG_VARIABLE = "INGERO_CONFIG"
PAGERDUTY_VARIABLE = "INGERO_PAGERDUTY_KEY"


@dataclass(frozen=True, slots=True, kw_only=True)
class PersistenceConfig:
    """The file that keeps the baseline over a restart, and how old it may be."""

    path: Path | None = setting(
        None,
        flag="--fleet-persist-path",
        computed="`/var/lib/ingero/health-baseline.json` for root, else under `~/.local/state`",
        help="File that keeps the baseline over a restart; an empty value keeps none.",
    )
    stale_age_s: float = setting(
        600.0,
        key="stale_age",
        duration=True,
        range=(0.0, 86400.0),
        flag="--fleet-persist-stale-age",
        help="Age beyond which a saved baseline is not used.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthConfig:
    """The `health` block: how signals become a score, and when a score makes a straggler."""

    weights: Weights = field(default_factory=Weights)
    degradation_zone: float = same_setting(ScorePolicy, "degradation_zone")
    penalty_floor: float = same_setting(ScorePolicy, "penalty_floor")
    baseline: BaselinePolicy = field(default_factory=BaselinePolicy)
    state: LifecyclePolicy = field(default_factory=LifecyclePolicy)
    classifier: ClassifierPolicy = field(default_factory=ClassifierPolicy)
    persistence: PersistenceConfig = field(default_factory=PersistenceConfig)

    def __post_init__(self) -> None:
        self.score_policy()

    def score_policy(self) -> ScorePolicy:
        """Return what core needs to compute a score. Raises ConfigError."""
        return ScorePolicy(
            weights=self.weights,
            degradation_zone=self.degradation_zone,
            penalty_floor=self.penalty_floor,
        )


class CollectivesFrom(StrEnum):
    """The source of collectives; `auto` is both rings and the probes' records in the database."""

    AUTO = "auto"
    RINGS = "rings"
    DB = "db"
    OFF = "off"


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalsConfig:
    """The `signals` block: what is read from the trace database and the rings."""

    window_s: float = setting(
        60.0,
        key="window",
        duration=True,
        range=(5.0, 3600.0),
        flag="--signal-window",
        help="Span of the trace database that one evaluation reads.",
    )
    num_gpus: int = setting(
        0,
        range=(0, 1024),
        computed="number that the driver reports",
        flag="--signal-num-gpus",
        help="Number of GPUs that the compute signal is divided by.",
    )
    collectives: CollectivesFrom = setting(
        CollectivesFrom.AUTO,
        flag="--collectives",
        help="Source of this node's collectives: rings of the NCCL plugin, records of the probes "
        "in the trace database (db), both (auto) or none (off).",
    )
    causes: bool = setting(
        True,
        flag="--causes/--no-causes",
        help="Send signals of each rank's process and GPU and the causal chains that the recorder "
        "finds, and look for a few seconds at a rank that Fleet asks about, to name why it is "
        "slow.",
    )
    engines: bool = setting(
        True,
        flag="--engines/--no-engines",
        help="Find the inference engines on this node and read their metrics pages every second, "
        "to name one that stalls or is slower than its replicas.",
    )
    engine_stall_s: float = setting(
        STALL_AFTER_S,
        key="engine_stall_after",
        duration=True,
        range=(2.0, 600.0),
        flag="--engine-stall-after",
        help="Time without a step, while requests wait, after which an inference engine is "
        "stalled; at least three times its longest step so far.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RemediateConfig:
    """The `remediate` block: the Unix socket that reports stragglers."""

    enabled: bool = setting(
        False,
        flag="--remediate",
        help="Open the remediation socket, a Unix socket that reports stragglers.",
    )
    socket: Path | None = setting(
        None,
        flag="--remediate-socket",
        computed="`ingero-remediate.sock` in the run directory",
        help="Path of the remediation socket, in a directory that only its owner can write to.",
    )
    gid: int = setting(
        65532,
        range=(-1, 2**31 - 1),
        flag="--remediate-gid",
        help="Numeric group that may read the remediation socket; -1 is the owner alone.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OtlpConfig:
    """The `otlp` block: where the spans of episodes are sent."""

    enabled: bool = setting(False, flag="--otlp-enabled", help="Send one span for each episode.")
    endpoint: str | None = setting(
        None,
        flag="--otlp-endpoint",
        metavar="HOST:PORT|URL",
        help="Address that spans are sent to, over HTTP with protobuf.",
    )
    insecure: bool | None = setting(
        None,
        flag="--otlp-insecure/--no-otlp-insecure",
        computed="plain text on this machine, TLS elsewhere",
        help="Allow spans in plain text to another machine.",
    )

    def __post_init__(self) -> None:
        if self.enabled and not self.endpoint:
            raise ConfigError("enabled: an endpoint is needed, for example 127.0.0.1:4318")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """The `store` block: the trace database."""

    path: Path | None = setting(
        None,
        flag="--signal-db-path",
        env=PATH_VARIABLE,
        computed="`~/.ingero/ingero.db`",
        help="Path of the trace database.",
    )
    max_db_size: int = setting(
        10 << 30,
        size=True,
        range=(0, None),
        help="Size above which the oldest rows are deleted; 0 means no limit.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class IngeroConfig:
    """The whole file. Blocks typed `object` belong to other agents that read the same file."""

    agent: AgentConfig = field(default_factory=AgentConfig)
    fleet: FleetBlockConfig = field(default_factory=FleetBlockConfig)
    contexts: dict[str, ContextConfig] = setting(
        {},
        help="Other Fleets to ask, by name: `url`, `endpoint`, `cluster_id`, `token_file`, "
        "`insecure` and `tls` as in `fleet`. `ingero context use NAME` chooses one.",
    )
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

    def __post_init__(self) -> None:
        if OWN_CONTEXT in self.contexts:
            raise ConfigError(f"contexts.{OWN_CONTEXT}: this is the name of the `fleet` block")


SYSTEM_CONFIG = Path("/etc/ingero/ingero.yaml")


def find_config() -> Path | None:
    """Return the configuration file of this node: the one in $INGERO_CONFIG, else the first found.

    The search order is `./ingero.yaml`, `~/.config/ingero/` and `/etc/ingero/`. Raises ConfigError
    where another user of the machine has put the file there.
    """
    given = os.environ.get(CONFIG_VARIABLE)
    if given:
        return Path(given)
    places = (
        Path("ingero.yaml"),
        home() / ".config" / "ingero" / "ingero.yaml",
        SYSTEM_CONFIG,
    )
    found = next((place for place in places if place.is_file()), None)
    if found is not None:
        _check_owner(found)
    return found


def _check_owner(path: Path) -> None:
    """Raise ConfigError where another user made or may change a file that was not asked for.

    Such a file could send a token to an address of its author.
    """
    for status in (path.lstat(), path.stat()):
        is_link = stat.S_ISLNK(status.st_mode)
        is_loose = not is_link and status.st_mode & stat.S_IWOTH
        if is_loose or status.st_uid not in {0, os.geteuid(), caller().pw_uid}:
            whose = "can be changed by everybody" if is_loose else f"is of user {status.st_uid}"
            raise ConfigError(
                f"{path.absolute()} {whose}, so it is not read by itself; move it away, or name it "
                f"in ${CONFIG_VARIABLE} if you trust it"
            )


def load_ingero(path: Path | None = None, flags: Mapping[str, Any] | None = None) -> IngeroConfig:
    """Return the settings of `path`, or of the file `find_config` finds, with variables and flags.

    Defaults apply where there is no file. Raises ConfigError.
    """
    return merged(IngeroConfig, path or find_config(), os.environ, flags or {})


class _PagerDuty(msgspec.Struct):
    routing_key: str = ""


class _Alerter(msgspec.Struct):
    """The part of the `alerter` block that we read; other agents define the block."""

    pagerduty: _PagerDuty = msgspec.field(default_factory=_PagerDuty)


def pagerduty_key() -> str | None:
    """Return the routing key from the environment, else from `alerter` of `ingero.yaml`.

    A file that holds the key must be readable by its owner only.
    """
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
    """Return the trace database: `given`, else $INGERO_DB, else `store.path`, else the default.

    Without any of them, it is that of an agent that runs here.
    """
    if given is not None:
        return given
    if config is None and os.environ.get(PATH_VARIABLE):
        return default_path()
    configured = (config or load_ingero()).store.path
    if configured is not None or default_path().exists():
        return configured or default_path()
    agent = running_service("agent")  # one whose database is elsewhere
    return Path(agent.database) if agent is not None and agent.database else default_path()
