"""The settings of `ingero-echo serve`: addresses, database, TLS, tokens and retention."""

import os
import re
from dataclasses import dataclass
from pathlib import Path

from ingero.config.values import check_address
from ingero.core.setting import setting
from ingero.errors import ConfigError
from ingero.storage.events.lake.address import parse_lake_address
from ingero.transport.tls import KEPT_CERTIFICATE

DEFAULT_DATABASE = Path("~/.ingero/echo.db")
DEFAULT_VOLUME_SHARE = 0.8
TOKEN_VARIABLE = "INGERO_ECHO_TOKEN"  # noqa: S105 - the name of a variable, not a token
CA_VARIABLE = "INGERO_ECHO_CA"
URL_VARIABLE = "INGERO_ECHO_URL"
_NAME = re.compile(r"[A-Za-z0-9._:-]{1,253}")  # a host name, or an address


@dataclass(frozen=True, slots=True, kw_only=True)
class EchoConfig:
    """The configuration of one Echo; without a file it listens on loopback."""

    otlp_addr: str = setting(
        "127.0.0.1:4317",
        flag="--otlp-addr",
        metavar="HOST:PORT",
        help="Address for OTLP over gRPC.",
    )
    otlp_http_addr: str = setting(
        "127.0.0.1:4318",
        flag="--otlp-http-addr",
        metavar="HOST:PORT",
        help="Address for OTLP over HTTP.",
    )
    mcp_addr: str = setting(
        "127.0.0.1:8081",
        flag="--mcp-addr",
        metavar="HOST:PORT",
        help="Address of the HTTP API and of MCP.",
    )
    health_addr: str = setting(
        "127.0.0.1:8080",
        flag="--health-addr",
        metavar="HOST:PORT",
        help="Address of the health page and of Echo's own metrics.",
    )
    db_path: Path = setting(
        DEFAULT_DATABASE,
        flag="--db-path",
        help="Database file; journal, lock and socket are created beside it.",
    )
    store: str = setting(
        "",
        flag="--store",
        metavar="URL",
        help="Lake that holds the tables instead of the database file, so that several Echos can "
        "share them: an address that begins with `ducklake:postgres:`.",
    )
    store_secrets_file: Path | None = setting(
        None,
        flag="--store-secrets-file",
        help="YAML file with password, reader_user, reader_password, s3_key_id and s3_secret of "
        "the lake, readable by its owner only.",
    )
    auth_token_file: Path | None = setting(
        None,
        flag="--auth-token-file",
        token_env=TOKEN_VARIABLE,
        computed="a token that Echo creates in `<db_path>.token`",
        help="File with the bearer token of senders and readers.",
    )
    bearer_acl_file: Path | None = setting(
        None,
        flag="--bearer-acl-file",
        help="File with several bearer tokens and the clusters that each of them may read.",
    )
    rotation_grace: float = setting(
        300.0,
        duration=True,
        range=(0, 86400),
        flag="--rotation-grace",
        help="How long a bearer token stays valid after a reload removed it.",
    )
    bearer_rate: float = setting(
        20.0,
        range=(1, 10_000),
        flag="--bearer-rate",
        help="Queries per second that one bearer token may send.",
    )
    bearer_burst: int = setting(
        40,
        range=(1, 100_000),
        flag="--bearer-burst",
        help="Queries that one bearer token may send at once.",
    )
    gpu_rates_file: Path | None = setting(
        None,
        flag="--gpu-rates-file",
        help="File with your prices per GPU hour, added to the shipped ones.",
    )
    tls_cert: Path | None = setting(
        None, flag="--tls-cert", help="Certificate of the listeners (PEM)."
    )
    tls_key: Path | None = setting(
        None, flag="--tls-key", help="Key of the certificate (PEM), readable by its owner only."
    )
    client_ca: Path | None = setting(
        None,
        flag="--client-ca",
        help="Certificate authority; every client must show a certificate that it signed.",
    )
    create_certificate: bool = setting(
        False,
        flag="--create-certificate",
        help="Create a certificate once, keep it beside the database and renew it in time.",
    )
    certificate_names: tuple[str, ...] = setting(
        (),
        help="Names by which clients reach Echo, besides those of this machine; the created "
        "certificate holds them.",
    )
    insecure_no_tls: bool = setting(
        False,
        flag="--insecure-no-tls",
        help="Listen without TLS; tokens and data are sent in plain text.",
    )
    trust_proxy_headers: bool = setting(
        False,
        flag="--trust-proxy-headers",
        help="Trust the last entry of X-Forwarded-For; only behind a proxy of your own.",
    )
    retention: float = setting(
        7 * 86400.0,
        duration=True,
        range=(60, None),
        flag="--retention",
        help="How long events and collectives are kept, counted from their reception.",
    )
    rollup_retention: float = setting(
        90 * 86400.0,
        duration=True,
        range=(60, None),
        flag="--rollup-retention",
        help="How long per-minute aggregates, verdicts, chains and the audit log are kept.",
    )
    max_database_size: int = setting(
        0,
        size=True,
        range=(0, None),
        computed="80 % of the volume",
        flag="--max-database-size",
        help="Size limit of the database; beyond it the oldest events are deleted.",
    )
    max_backlog_size: int = setting(
        2 << 30,
        size=True,
        range=(1 << 20, None),
        flag="--max-backlog-size",
        help="Size of requests not yet loaded beyond which new requests get status 429.",
    )
    max_quarantine_size: int = setting(
        256 << 20,
        size=True,
        range=(16 << 20, None),
        flag="--max-quarantine-size",
        help="Size of requests kept that cannot be loaded; beyond it more of them are dropped.",
    )
    store_memory: int = setting(
        4 << 30,
        size=True,
        range=(1 << 30, None),
        flag="--store-memory",
        help="Address space of the store process; limits what one query can cost.",
    )
    store_threads: int = setting(
        0,
        range=(0, 256),
        computed="half the cores",
        flag="--store-threads",
        help="Number of threads for each query.",
    )

    def __post_init__(self) -> None:
        for name in ("otlp_addr", "otlp_http_addr", "mcp_addr", "health_addr"):
            check_address(name, getattr(self, name))
        if self.store:
            parse_lake_address(self.store)
        elif self.store_secrets_file is not None:
            raise ConfigError("store_secrets_file: it belongs to a lake; give its address as store")
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError("tls_cert and tls_key belong together; give both or neither")
        has_tls = self.tls_cert is not None or self.create_certificate
        for name in self.certificate_names:
            if not _NAME.fullmatch(name):
                raise ConfigError(f"certificate_names: {name!r} is not a host name or an address")
        if self.certificate_names and not self.create_certificate:
            raise ConfigError(
                f"certificate_names: {self.certificate_names[0]!r} needs create_certificate; "
                "a certificate that you give holds its own names"
            )
        if has_tls and self.insecure_no_tls:
            raise ConfigError("insecure_no_tls contradicts a certificate; choose one")
        if not has_tls and not self.insecure_no_tls:
            raise ConfigError(
                "Echo needs TLS: give --tls-cert and --tls-key, or --create-certificate to have "
                "one created and kept, or --insecure-no-tls to send tokens and data in plain text"
            )

    @property
    def database(self) -> Path:
        """The database file with `~` resolved."""
        return self.db_path.expanduser()

    def threads(self) -> int:
        """Return the threads of a query: half the cores unless set; ingestion has the others."""
        return self.store_threads or max(1, (os.cpu_count() or 2) // 2)

    def database_limit_bytes(self) -> int:
        """Return the size limit: as set, else a share of the volume that holds the database."""
        if self.max_database_size or self.store:  # object storage has no size of its own
            return self.max_database_size
        volume = os.statvfs(self.database.parent)
        return int(volume.f_frsize * volume.f_blocks * DEFAULT_VOLUME_SHARE)


def token_beside(database: Path) -> Path:
    """Return the path of the token that Echo creates for itself."""
    return database.with_name(database.name + ".token")


def certificate_beside(database: Path) -> Path:
    """Return the path of the certificate that Echo creates for itself."""
    return database.with_name(database.name + ".tls") / KEPT_CERTIFICATE
