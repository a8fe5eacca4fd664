"""The `agent` block of `ingero.yaml`: the name of a node, its log, its probes and its API."""

from dataclasses import dataclass, field
from pathlib import Path

from ingero.config.values import LOG_LEVELS, check_address
from ingero.contract.names import MAX_LABELS
from ingero.contract.push.decode import problem_with_id
from ingero.core.setting import setting
from ingero.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentApiConfig:
    """The page and API of this node, which `ingero agent` serves where an address is set."""

    listen: str | None = setting(
        None,
        metavar="[HOST]:PORT",
        help="Address of the page and API that `ingero agent` serves, with TLS; `:8080` is every "
        "address. Without it the agent opens no port.",
    )
    cert_file: Path | None = setting(
        None,
        computed="the certificate that Fleet signed, else one that is made and kept",
        help="Certificate of the API (PEM).",
    )
    key_file: Path | None = setting(
        None, help="Key of that certificate, readable by its owner only."
    )
    client_ca: Path | None = setting(
        None,
        help="Answer only clients with a certificate of this authority; `ingero join` sets it.",
    )
    token_file: Path | None = setting(
        None,
        help="File with the bearer tokens that the API accepts, readable by its owner only.",
    )

    def __post_init__(self) -> None:
        if self.listen is not None:
            check_address("listen", self.listen)
        if (self.cert_file is None) != (self.key_file is None):
            raise ConfigError("cert_file: cert_file and key_file come together; give both or none")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentConfig:
    """The `agent` block: the name of this node, its log and the cost of its probes."""

    node: str | None = setting(
        None,
        computed="host name",
        help="Name of this node in everything it records and pushes; without a colon.",
    )
    log_level: str = setting(
        "info",
        choices=LOG_LEVELS,
        flag="--log-level",
        help="Lowest level of the messages that are logged to standard error.",
    )
    max_overhead_percent: float = setting(
        1.0,
        range=(0.1, 100.0),
        help="Percentage of a core that the probes of `ingero trace` may cost a traced process, "
        "not counting time in which it waits for the GPU.",
    )
    record: bool = setting(
        True,
        help="Let `ingero agent` record this node: probes where the kernel allows them, "
        "collectives of the NCCL plugin, and annotations.",
    )
    api: AgentApiConfig = field(default_factory=AgentApiConfig)
    labels: dict[str, str] = setting(
        {},
        help="What this node has in common with others, such as `rack: r7`; at most five. Ranks "
        "that become slow together and share a label are one event that names it.",
    )

    def __post_init__(self) -> None:
        if len(self.labels) > MAX_LABELS:
            raise ConfigError(f"labels: {len(self.labels)} labels; at most {MAX_LABELS} are sent")
        for name, value in self.labels.items():
            if problem_with_id(name) or problem_with_id(value):
                raise ConfigError(
                    f"labels.{name}: name and value must be 1 to 253 printable characters "
                    "without spaces around them"
                )
        if self.node is not None and (problem_with_id(self.node) or ":" in self.node):
            raise ConfigError(
                f"node: {self.node!r} must be 1 to 253 printable characters without a colon"
            )
