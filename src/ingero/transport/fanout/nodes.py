"""The nodes that a fan-out asks, and how it may reach them.

Imports nothing heavy, because commands import this module on every start.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ingero.errors import AuthError, ConfigError
from ingero.transport.tls import ClientTls, fingerprint_bytes, is_loopback


@dataclass(frozen=True, slots=True, kw_only=True)
class FanoutPolicy:
    """How to reach the nodes. `trusted` holds fingerprints by address, as the nodes print them."""

    timeout_s: float = 5.0
    tls: ClientTls = field(default_factory=ClientTls)
    trusted: Mapping[str, str] = field(default_factory=dict)
    require_tls: bool = True
    token: str | None = None
    max_reply_bytes: int = 32 << 20
    backlog_bytes: int = 32 << 20  # of replies that wait for a slower node before them

    def pinned(self, node: str) -> bytes:
        """Return the fingerprint that a certificate must have; empty if authorities decide."""
        text = self.trusted.get(split_scheme(node)[1])
        return fingerprint_bytes(text) if text else b""


def parse_nodes(text: str) -> list[str]:
    """Split `a:8080,b:8080`, with or without brackets; drop blanks and repeated nodes."""
    inner = text.strip()
    if inner.startswith("[") and inner.endswith("]"):  # not the brackets of an IPv6 address
        inner = inner[1:-1]
    return distinct([part.strip() for part in inner.split(",") if part.strip()])


def distinct(nodes: Sequence[str]) -> list[str]:
    """Return each node once, however often and however spelled: its rows must not count twice."""
    first: dict[str, str] = {}
    for node in nodes:
        first.setdefault(split_scheme(node)[1].lower(), node)
    return list(first.values())


def plain_nodes(nodes: Sequence[str], *, is_trusted: bool) -> list[str]:
    """Return the addresses for plaintext.

    Raises ConfigError for a node that says https, and off loopback where the network is not
    trusted.
    """
    for node in nodes:
        scheme, host = split_scheme(node)
        if scheme == "https":
            raise ConfigError(f"{node} uses TLS, which --no-tls excludes; write host:port")
        if not is_trusted and not is_loopback(host):
            raise ConfigError(
                f"--no-tls would ask {host} in plaintext; add --trusted-network if nobody else "
                "can read or answer on the way, and no token is sent then"
            )
    return [f"http://{split_scheme(node)[1]}" for node in nodes]


def check_nodes(nodes: Sequence[str], policy: FanoutPolicy) -> None:
    """Raise ConfigError for no nodes, bad addresses or unsafe plaintext, before any request."""
    if not nodes:
        raise ConfigError(
            "no nodes to ask: give --nodes host:port,… "
            "or list them under fleet.nodes in ingero.yaml"
        )
    for node in nodes:
        scheme, host = split_scheme(node)
        if scheme not in ("", "http", "https"):
            raise ConfigError(f"{node!r} is not a node; write host:port")
        split_host_port(node)
        try:
            policy.pinned(node)
        except ConfigError as error:
            raise ConfigError(f"fleet.trusted of {host}: {error}") from None
        if scheme == "http" and policy.require_tls and not is_loopback(host):
            raise ConfigError(
                f"node {node} would be asked in plaintext, token included; use https, "
                "or allow it with --no-fleet-require-tls on a network you trust"
            )


def split_host_port(node: str) -> tuple[str, int]:
    """Return host and port of a node's address; raise ConfigError where it is ambiguous."""
    host, _, port = split_scheme(node)[1].rpartition(":")
    is_port = port.isascii() and port.isdigit() and len(port) <= 5 and 0 < int(port) < 65536
    if not is_port or not _is_host(host):
        raise ConfigError(
            f"{node!r} is not a node; "
            "write host:port, for example gpu-node-01:8080 or [fd00::1]:8080"
        )
    return host.removeprefix("[").removesuffix("]"), int(port)


def _is_host(text: str) -> bool:
    """Whether this is a name or an address, without user, path or blanks."""
    if text.startswith("[") and text.endswith("]"):
        return bool(text[1:-1])
    labels = text.removesuffix(".").split(".")
    return not set(text) & set(":/@?#[]% \t") and all(0 < len(label) < 64 for label in labels)


def client_tls(ca: Path | None, cert: Path | None, key: Path | None) -> ClientTls:
    """Return the files given on the command line; raise AuthError for half a pair."""
    if (cert is None) != (key is None):
        raise AuthError("--client-cert and --client-key come together; give both or none")
    return ClientTls(ca=ca, cert=cert, key=key)


def split_scheme(node: str) -> tuple[str, str]:
    """Split a node's address into scheme, empty if not written, and the rest."""
    scheme, separator, rest = node.partition("://")
    return (scheme, rest.rstrip("/")) if separator else ("", node.rstrip("/"))
