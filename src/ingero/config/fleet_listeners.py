"""The listeners of a Fleet configuration: address, certificate and token of each."""

import ipaddress
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ingero.config.values import check_address
from ingero.core.setting import setting
from ingero.errors import ConfigError
from ingero.transport.tls import ServerTls


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerTlsConfig:
    """The certificate of a listener, and the authority of its clients' certificates."""

    cert_file: Path = setting(help="Certificate of the listener (PEM).")
    key_file: Path = setting(help="Key of the certificate (PEM), readable by its owner only.")
    client_ca_file: Path | None = setting(
        None, help="Certificate authority for mutual TLS; every client must show a certificate."
    )

    def files(self) -> ServerTls:
        """Return these files as the transport takes them."""
        return ServerTls(cert=self.cert_file, key=self.key_file, client_ca=self.client_ca_file)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyConfig:
    """A reverse proxy that signs users in, and names them in a header."""

    user_header: str = setting(help="Header in which the proxy names the user.")
    addresses: tuple[str, ...] = setting(
        (), help="Addresses or networks of the proxy, such as 10.0.0.5 or 10.1.0.0/16."
    )
    secret_file: Path | None = setting(
        None,
        help="File with a secret that the proxy sends in `X-Ingero-Proxy-Secret`, readable by its "
        "owner only.",
    )
    operators: tuple[str, ...] = setting(
        (), help="Users who may also make silences and change limits; others may only read."
    )

    def __post_init__(self) -> None:
        if not self.addresses and self.secret_file is None:
            raise ConfigError(
                "user_header: anybody could send this header; give the addresses of the proxy, a "
                "secret_file, or both"
            )
        if not re.fullmatch(r"[A-Za-z0-9-]{1,64}", self.user_header) or (
            self.user_header.lower() in ("authorization", "host", "cookie", "origin")
        ):
            raise ConfigError(f"user_header: {self.user_header!r} cannot name a user")
        for address in self.addresses:
            try:
                ipaddress.ip_network(address)
            except ValueError as error:
                raise ConfigError(f"addresses: {error}") from None


ACCESS_HELP: Final = (
    "File with the bearer tokens that clients may send, readable by its owner only."
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ListenerConfig:
    """An address that Fleet listens on, with its certificate and token."""

    endpoint: str
    tls: ListenerTlsConfig | None = None
    token_file: Path | None = setting(None, help=ACCESS_HELP)

    def __post_init__(self) -> None:
        check_address("endpoint", self.endpoint)
