"""The section `alerts` of a Fleet configuration: the targets that get alerts about episodes."""

from dataclasses import dataclass, fields
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from ingero.core.setting import same_setting, setting
from ingero.errors import ConfigError
from ingero.transport.tls import is_loopback

_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetConfig:
    """What every target has."""

    max_per_minute: int = setting(
        20, range=(1, 600), help="Messages per minute; more wait, and none is lost."
    )
    timeout: float = setting(
        10.0, duration=True, range=(0.1, 60.0), help="Timeout of a single message."
    )

    def check(self) -> None:
        """Raise ConfigError for a file that does not exist."""
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, Path) and not value.is_file():
                raise ConfigError(f"{field.name}: {value} is not a file")


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertmanagerConfig(TargetConfig):
    """An Alertmanager, which gets open alerts again every minute."""

    url: str = setting(help="Address of the Alertmanager, without /api/v2/alerts.")
    token_file: Path | None = setting(None, help="File with the bearer token for it.")
    ca_file: Path | None = setting(
        None, computed="authorities of the system", help="Authority that signed its certificate."
    )

    def __post_init__(self) -> None:
        check_url(self.url, sends_secret=self.token_file is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class PagerdutyConfig(TargetConfig):
    """A PagerDuty service, by its Events API v2."""

    routing_key_file: Path = setting(
        help="File with the integration key of the service, readable by its owner only."
    )
    url: str = setting(
        "https://events.pagerduty.com/v2/enqueue", help="Address that takes the events."
    )

    def __post_init__(self) -> None:
        check_url(self.url, sends_secret=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class WebhookConfig(TargetConfig):
    """Any receiver of Alertmanager's webhooks (version 4)."""

    url: str = setting(help="Address that messages are posted to.")
    secret_file: Path | None = setting(
        None, help="File with the key of the signature in X-Ingero-Signature; none without it."
    )
    token_file: Path | None = same_setting(AlertmanagerConfig, "token_file")
    ca_file: Path | None = same_setting(AlertmanagerConfig, "ca_file")

    def __post_init__(self) -> None:
        check_url(self.url, sends_secret=self.token_file is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class AppriseConfig(TargetConfig):
    """Slack, Teams, e-mail and the other services of the package apprise."""

    urls_file: Path = setting(
        help="File with one apprise URL per line, readable by its owner only."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class KubernetesConfig(TargetConfig):
    """A Kubernetes API server: events about nodes and, if asked for, a condition of them."""

    url: str = setting("https://kubernetes.default.svc", help="Address of the API server.")
    token_file: Path = setting(_ACCOUNT / "token", help="File with the token of the account.")
    ca_file: Path | None = setting(
        _ACCOUNT / "ca.crt", help="Authority that signed the API server's certificate."
    )
    namespace: str = setting("default", help="Namespace of the events about nodes.")
    node_condition: bool = setting(
        False, help="Set the condition GpuStraggler of a node while one of its ranks is slow."
    )

    def __post_init__(self) -> None:
        check_url(self.url, sends_secret=True)


AnyTarget = AlertmanagerConfig | PagerdutyConfig | WebhookConfig | AppriseConfig | KubernetesConfig
TARGETS: Final = {
    "alertmanager": AlertmanagerConfig,
    "pagerduty": PagerdutyConfig,
    "webhook": WebhookConfig,
    "apprise": AppriseConfig,
    "kubernetes": KubernetesConfig,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertsConfig:
    """The section `alerts`."""

    public_url: str = setting(
        "",
        help="Address under which people reach Fleet's threshold API; alerts link to the page of "
        "their episode there.",
    )
    targets: dict[str, AnyTarget] = setting({}, components=TARGETS)

    def __post_init__(self) -> None:
        if self.public_url:
            check_url(self.public_url, "public_url")


def check_url(url: str, key: str = "url", *, sends_secret: bool = False) -> None:
    """Raise ConfigError for a URL that is not http(s), or that would send a secret in plaintext."""
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"{key}: {url!r} must begin with http:// or https://")
    try:
        host = urlsplit(url).hostname or ""
    except ValueError:
        host = ""
    if not host:
        raise ConfigError(f"{key}: {url!r} names no host")
    if sends_secret and url.startswith("http://") and not is_loopback(f"[{host}]"):
        raise ConfigError(f"{key}: {url!r} would send a token in plaintext; use https://")
