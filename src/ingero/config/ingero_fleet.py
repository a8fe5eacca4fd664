"""The `fleet` block of `ingero.yaml`: where a node pushes, and which nodes commands query."""

from dataclasses import dataclass, field
from pathlib import Path

from ingero.contract.names import FLEET_TOKEN_VARIABLE
from ingero.contract.push.decode import problem_with_id
from ingero.contract.types import DetectionMode
from ingero.core.setting import setting
from ingero.errors import ConfigError
from ingero.transport.endpoint import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetTlsConfig:
    """Certificates for the connection to Fleet; a certificate and its key belong together."""

    ca: Path | None = setting(
        None,
        flag="--fleet-tls-ca",
        computed="authorities of the system",
        help="Certificate authority that signed Fleet's certificate.",
    )
    cert: Path | None = setting(
        None, flag="--fleet-tls-cert", help="Certificate of this agent, for mutual TLS."
    )
    key: Path | None = setting(
        None,
        flag="--fleet-tls-key",
        help="Key of the agent's certificate, readable by its owner only.",
    )


OWN_CONTEXT = "default"  # the name of the `fleet` block among contexts


@dataclass(frozen=True, slots=True, kw_only=True)
class ContextConfig:
    """One of `contexts`: a Fleet that a person asks, with keys that mean the same as in `fleet`."""

    url: str | None = setting(None, metavar="URL", help="Address of Fleet's API and page.")
    endpoint: str | None = setting(
        None,
        metavar="HOST:PORT|URL",
        help="Address for pushes, which `ingero check --fleet` tests.",
    )
    cluster_id: str | None = setting(None, metavar="NAME", help="Cluster that commands show.")
    token_file: Path | None = setting(None, help="File with the bearer token.")
    insecure: bool = setting(False, help="Allow plain text to another machine.")
    tls: FleetTlsConfig = field(default_factory=FleetTlsConfig)

    def __post_init__(self) -> None:
        if not (self.url or self.endpoint):
            raise ConfigError(
                "url: missing; give the address of Fleet's API, such as https://fleet:8080"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetBlockConfig:
    """The `fleet` block: where to push, under which name, and which nodes a fan-out queries."""

    endpoint: str | None = setting(
        None,
        flag="--fleet-endpoint",
        metavar="HOST:PORT|URL",
        help="Address of the Fleet to push to: gRPC on port 4317, HTTP on port 4318 or with a "
        "path. Required to push.",
    )
    url: str | None = setting(
        None,
        metavar="URL",
        computed="port 8080 of the machine in `endpoint`",
        help="Address of Fleet's API and page, which `ingero status`, `top` and `silence` ask.",
    )
    protocol: Protocol | None = setting(
        None,
        flag="--fleet-protocol",
        computed="chosen from the port",
        help="Protocol of the pushes.",
    )
    cluster_id: str | None = setting(
        None,
        flag="--fleet-cluster-id",
        metavar="NAME",
        help="Name of the cluster; nodes of one cluster are compared with each other. "
        "Required to push.",
    )
    node_id: str | None = setting(
        None,
        flag="--fleet-node-id",
        metavar="NAME",
        computed="`agent.node`",
        help="Name under which this node pushes.",
    )
    job_id: str | None = setting(
        None,
        flag="--fleet-job-id",
        metavar="NAME",
        help="Name of the training job that this node works for.",
    )
    role: str | None = setting(None, help="Role of this node in the job, for example `pp2`.")
    provider: str | None = setting(
        None,
        flag="--fleet-provider",
        metavar="NAME",
        computed="as the firmware of the machine says, for AWS, Google Cloud and Azure",
        help="Provider of this node, such as lambda, coreweave or onprem: a label of its metrics, "
        "and what its GPUs are priced by.",
    )
    workload_type: str = setting(
        "unknown",
        flag="--fleet-workload-type",
        metavar="NAME",
        help="Kind of work, such as training or inference. With inference, `ingero trace` "
        "searches half a second back for causes instead of ten seconds.",
    )
    push_interval_s: float = setting(
        5.0,
        key="push_interval",
        duration=True,
        range=(1.0, 3600.0),
        flag="--fleet-push-interval",
        help="Time between evaluations and pushes, varied by ±10 %.",
    )
    timeout_s: float = setting(
        2.0,
        key="timeout",
        duration=True,
        range=(0.1, 300.0),
        flag="--fleet-timeout",
        help="Timeout of a single push; at most the push interval. Measurements of ranks and "
        "engines wait at least 10 seconds.",
    )
    compression: str = setting(
        "none",
        choices=("none", "gzip"),
        flag="--fleet-compression",
        help="Compression of pushes larger than a packet. It saves most of the network traffic of "
        "own times and collectives, and costs Fleet about a quarter more CPU for such a push.",
    )
    threshold_url: str | None = setting(
        None,
        flag="--fleet-threshold-url",
        metavar="URL",
        help="Address to poll for a threshold while replies to pushes carry none.",
    )
    poll_interval_s: float = setting(
        10.0,
        key="poll_interval",
        duration=True,
        range=(1.0, 3600.0),
        flag="--fleet-poll-interval",
        help="Time between polls of the threshold URL, varied by ±20 %.",
    )
    insecure: bool = setting(
        False,
        flag="--fleet-insecure",
        help="Allow plain text to another machine, and use it where the address has no scheme; "
        "excludes TLS.",
    )
    failure_threshold: int = setting(
        3,
        range=(1, 1000),
        help="Failed pushes in a row before Fleet counts as unreachable.",
    )
    cached_max_age_s: float = setting(
        300.0,
        key="cached_max_age",
        duration=True,
        range=(1.0, 86400.0),
        help="How long the last threshold is used while Fleet is unreachable; never less than "
        "four push intervals.",
    )
    token_file: Path | None = setting(
        None,
        flag="--fleet-token-file",
        token_env=FLEET_TOKEN_VARIABLE,
        help="File with the bearer token for pushes and polls, readable by its owner only. It is "
        "read each time, so that a new token needs no restart.",
    )
    token_to_nodes: bool = setting(
        True,
        help="Send that token also to nodes that are asked. Turn it off where nodes know you by "
        "`client_cert`, so that no node learns the token for Fleet.",
    )
    headers: dict[str, str] = setting(
        {}, help="HTTP headers that are sent with every push and poll; without line breaks."
    )
    tls: FleetTlsConfig = field(default_factory=FleetTlsConfig)
    world_size: int = setting(
        0,
        range=(0, 10_000_000),
        flag="--fleet-world-size",
        help="Number of ranks in the job; 0 means unknown.",
    )
    node_rank: int = setting(
        0,
        range=(0, 10_000_000),
        flag="--fleet-node-rank",
        help="Rank of this node in the job, below the world size.",
    )
    detection_mode: DetectionMode = setting(
        DetectionMode.NONE,
        flag="--fleet-detection-mode",
        help="Detection mode to report while no threshold is known.",
    )
    nodes: tuple[str, ...] = setting(
        (),
        metavar="HOST:PORT,…",
        help="Nodes to query, as `host:port`.",
    )
    ca_cert: Path | None = setting(
        None, help="Certificate authority that signed the nodes' certificates."
    )
    client_cert: Path | None = setting(None, help="Client certificate for nodes that require one.")
    client_key: Path | None = setting(None, help="Key of the client certificate.")
    trusted: dict[str, str] = setting(
        {}, help="Certificates that are accepted by fingerprint, as `host:port`: fingerprint."
    )

    def __post_init__(self) -> None:
        if self.timeout_s > self.push_interval_s:
            raise ConfigError(
                f"timeout: {self.timeout_s:g}s is longer than "
                f"push_interval {self.push_interval_s:g}s; a push must end before the next one"
            )
        if self.world_size and self.node_rank >= self.world_size:
            raise ConfigError(
                f"node_rank: {self.node_rank} must be below world_size {self.world_size}"
            )
        if self.insecure and (self.tls.ca or self.tls.cert or self.tls.key):
            raise ConfigError("insecure and tls exclude each other; remove one")
        for name in ("cluster_id", "node_id", "job_id", "role", "provider", "workload_type"):
            value = getattr(self, name)
            if value is not None and problem_with_id(value):
                raise ConfigError(
                    f"{name}: {value!r} must be 1 to 253 printable characters "
                    "without spaces around them"
                )
