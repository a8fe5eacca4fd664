"""The listeners of a Fleet configuration: address, certificate and token of each."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ingero.config.values import check_address
from ingero.core.setting import setting
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
