"""The setting `cluster_log` of Fleet: the log that several replicas share."""

import socket
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ingero.contract.replicas.entries import MAX_NAME
from ingero.core.setting import setting
from ingero.errors import ConfigError
from ingero.transport.cluster_log.address import parse_log_address

_NAME_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterLogTlsConfig:
    """The certificates for an engine that is reached over TLS."""

    ca_file: Path | None = setting(
        None,
        computed="authorities of the system",
        help="Certificate authority that signed the engine's certificate.",
    )
    cert_file: Path | None = setting(None, help="Certificate of this Fleet, for mutual TLS.")
    key_file: Path | None = setting(
        None, help="Key of Fleet's certificate, readable by its owner only."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterLogConfig:
    """The log of a Fleet of several replicas; without a `url` Fleet runs alone."""

    SHORT: ClassVar[str] = "url"  # what a plain value instead of this section means

    url: str | None = setting(
        None,
        flag="--cluster-log",
        metavar="URL",
        help="Address of the Valkey (or Redis 7) that all replicas share: `valkey://HOST:6379`, "
        "`valkeys://` with TLS, or `valkey+sentinel://HOST1,HOST2,HOST3/NAME`.",
    )
    shard: str = setting(
        "fleet", help="Name of this Fleet; replicas with the same name share everything."
    )
    replica: str | None = setting(
        None,
        flag="--replica",
        metavar="NAME",
        computed="the host's name",
        help="Name of this replica, different from all others.",
    )
    user: str | None = setting(None, help="User of the engine, where it has any.")
    password_file: Path | None = setting(
        None, help="File with the password of the engine, readable by its owner only."
    )
    tls: ClusterLogTlsConfig | None = None

    def __post_init__(self) -> None:
        if self.url is not None:
            try:
                address = parse_log_address(self.url)
            except ConfigError as error:
                raise ConfigError(f"url: {error}") from None
            if self.tls is not None and not address.is_tls:
                raise ConfigError("tls: has no effect; the url must begin with valkeys://")
        for key in ("shard", "replica"):
            name = getattr(self, key)
            if name is not None and (not set(name) <= _NAME_CHARACTERS or not 0 < len(name) <= 64):
                raise ConfigError(f"{key}: use letters, digits, dots, hyphens and underscores")

    @property
    def name(self) -> str:
        """The name of this replica."""
        return self.replica or socket.gethostname()[:MAX_NAME]
