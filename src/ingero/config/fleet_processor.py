"""The processor `ingero` of a Fleet configuration: threshold, quorum and verdicts."""

from dataclasses import dataclass
from pathlib import Path

from ingero.core.health.threshold import ThresholdPolicy
from ingero.core.setting import same_setting, setting
from ingero.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ThresholdConfig:
    """How far below its peers a node must be; docs/configuration.md has worked numbers."""

    k: float = same_setting(ThresholdPolicy, "k")
    ema_alpha: float = same_setting(ThresholdPolicy, "ema_alpha")
    min: float = same_setting(ThresholdPolicy, "min")
    max: float = same_setting(ThresholdPolicy, "max")
    min_gap: float = same_setting(ThresholdPolicy, "min_gap")


@dataclass(frozen=True, slots=True, kw_only=True)
class QuorumConfig:
    """How many nodes must be active for a threshold to count."""

    statistical_min: int = same_setting(ThresholdPolicy, "statistical_min")
    coverage_fraction: float = same_setting(ThresholdPolicy, "coverage_fraction")
    expected_nodes: int = setting(
        0,
        range=(0, None),
        help="Nodes that the cluster should have; 0 counts those that pushed lately.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictConfig:
    """The verdicts: what they cost, and which files they read and write."""

    enabled: bool = setting(
        True,
        help="Compute verdicts from own times and collectives; they are part of replies, logs "
        "and metrics.",
    )
    warmup_samples: int = setting(
        30,  # as `VerdictPolicy`, which needs numpy; commands that only read settings do without
        range=(20, 240),
        help="Samples of about a second from which a rank's baseline is learned; fewer name a slow "
        "rank sooner after the start of a job, and need a larger slowdown.",
    )
    rates_file: Path | None = setting(
        None,
        help="File with your prices per GPU hour, added to the shipped ones; `ingero rates check` "
        "validates it.",
    )
    record_inputs: Path | None = setting(
        None,
        flag="--record-inputs",
        metavar="FOLDER",
        help="Folder to record the inputs of verdicts in, for `ingero replay`.",
    )
    record_max_bytes: int = setting(
        256 << 20,
        size=True,
        range=(1 << 20, None),
        help="Size limit of the recorded inputs; the oldest of eight files is deleted first.",
    )
    silences_file: Path | None = setting(
        None,
        flag="--silences",
        help="File that keeps silences over a restart; without it they end with the process.",
    )
    state_dir: Path | None = setting(
        None,
        flag="--state-dir",
        metavar="FOLDER",
        help="Folder that keeps the last episodes with their inputs, and the alerts that are "
        "still to be sent, over a restart; without it they are kept in memory only.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class IngeroProcessorConfig:
    """The processor `ingero`: threshold, quorum and verdicts of each cluster."""

    threshold: ThresholdConfig = setting(ThresholdConfig())
    quorum: QuorumConfig = setting(QuorumConfig())
    verdict: VerdictConfig = setting(VerdictConfig())
    push_interval: float = same_setting(ThresholdPolicy, "push_interval_s")
    ttl_multiplier: int = same_setting(ThresholdPolicy, "ttl_multiplier")
    max_expected_nodes: int = setting(
        10_000,
        range=(1, 1_000_000),
        help="Nodes that one cluster may have; more are refused and counted.",
    )
    max_clusters: int = setting(
        1024,
        range=(1, 100_000),
        help="Clusters that this Fleet may have; more are refused and counted.",
    )

    def __post_init__(self) -> None:
        try:
            self.policy()
        except ConfigError as error:  # it names the field, not the section the field is in
            name = str(error).partition(":")[0]
            sections = [
                each for each in ("threshold", "quorum") if hasattr(getattr(self, each), name)
            ]
            raise ConfigError(".".join([*sections, str(error)])) from None

    def policy(self) -> ThresholdPolicy:
        """Return these settings as core takes them."""
        return ThresholdPolicy(
            k=self.threshold.k,
            ema_alpha=self.threshold.ema_alpha,
            min=self.threshold.min,
            max=self.threshold.max,
            min_gap=self.threshold.min_gap,
            statistical_min=self.quorum.statistical_min,
            coverage_fraction=self.quorum.coverage_fraction,
            push_interval_s=self.push_interval,
            ttl_multiplier=self.ttl_multiplier,
        )
