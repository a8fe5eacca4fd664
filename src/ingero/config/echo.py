"""Settings of `ingero-echo serve`: addresses, where the data lies, who may speak, how much is kept."""

import os
from dataclasses import dataclass
from pathlib import Path

from ingero.config.loader import check_address, setting
from ingero.errors import ConfigError
from ingero.transport.tls import KEPT_CERTIFICATE

DEFAULT_DATABASE = Path("~/.ingero/echo.db")
DEFAULT_VOLUME_SHARE = 0.8
TOKEN_VARIABLE = "INGERO_ECHO_TOKEN"  # noqa: S105 - the name of a variable, not a token
CA_VARIABLE = "INGERO_ECHO_CA"
URL_VARIABLE = "INGERO_ECHO_URL"


@dataclass(frozen=True, slots=True, kw_only=True)
class EchoConfig:
    """One Echo; without a file it binds to loopback."""

    otlp_addr: str = "127.0.0.1:4317"
    otlp_http_addr: str = "127.0.0.1:4318"
    mcp_addr: str = "127.0.0.1:8081"
    health_addr: str = "127.0.0.1:8080"
    db_path: Path = DEFAULT_DATABASE
    tls_cert: Path | None = None
    tls_key: Path | None = None
    client_ca: Path | None = None
    create_certificate: bool = False
    insecure_no_tls: bool = False
    auth_token_file: Path | None = None
    bearer_acl_file: Path | None = None
    rotation_grace: float = setting(300.0, duration=True, range=(0, 86400))
    bearer_rate: float = setting(20.0, range=(1, 10_000))
    bearer_burst: int = setting(40, range=(1, 100_000))
    gpu_rates_file: Path | None = None
    trust_proxy_headers: bool = False
    retention: float = setting(7 * 86400.0, duration=True, range=(60, None))
    rollup_retention: float = setting(90 * 86400.0, duration=True, range=(60, None))
    max_database_size: int = setting(0, size=True, range=(0, None))
    max_backlog_size: int = setting(2 << 30, size=True, range=(1 << 20, None))
    store_memory: int = setting(4 << 30, size=True, range=(1 << 30, None))
    store_threads: int = setting(0, range=(0, 256))

    def __post_init__(self) -> None:
        for name in ("otlp_addr", "otlp_http_addr", "mcp_addr", "health_addr"):
            check_address(name, getattr(self, name))
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("tls_cert and tls_key come together; give both or none")
        has_tls = self.tls_cert is not None or self.create_certificate
        if has_tls and self.insecure_no_tls:
            raise ConfigError("insecure_no_tls contradicts a certificate; choose one")
        if not has_tls and not self.insecure_no_tls:
            raise ConfigError(
                "Echo needs TLS: give --tls-cert and --tls-key, or --create-certificate to have one made and kept, "
                "or --insecure-no-tls to send tokens and data in the clear"
            )

    @property
    def database(self) -> Path:
        """The database file with `~` resolved."""
        return self.db_path.expanduser()

    def threads(self) -> int:
        """Threads of one query: half the cores unless set, so that acknowledgements keep theirs."""
        return self.store_threads or max(1, (os.cpu_count() or 2) // 2)

    def database_limit_bytes(self) -> int:
        """The bound on size: as set, else a share of the volume the database lies on."""
        if self.max_database_size:
            return self.max_database_size
        volume = os.statvfs(self.database.parent)
        return int(volume.f_frsize * volume.f_blocks * DEFAULT_VOLUME_SHARE)


def token_beside(database: Path) -> Path:
    """Where the token lies that Echo made for itself."""
    return database.with_name(database.name + ".token")


def certificate_beside(database: Path) -> Path:
    """Where the certificate lies that Echo made for itself."""
    return database.with_name(database.name + ".tls") / KEPT_CERTIFICATE
