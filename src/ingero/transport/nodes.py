"""Which nodes a fan-out asks and how it may reach them. Imports nothing heavy: commands read it on every start."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ingero.errors import AuthError, ConfigError
from ingero.transport.tls import ClientTls, is_loopback


@dataclass(frozen=True, slots=True, kw_only=True)
class FanoutPolicy:
    """How to reach the nodes. `trusted` holds fingerprints by address, as printed by the nodes."""

    timeout_s: float = 5.0
    tls: ClientTls = field(default_factory=ClientTls)
    trusted: Mapping[str, str] = field(default_factory=dict)
    require_tls: bool = True
    token: str | None = None


def parse_nodes(text: str) -> list[str]:
    """`a:8080,b:8080`, with or without brackets around it; blanks are dropped, doubles asked once."""
    inner = text.strip()
    if inner.startswith("[") and inner.endswith("]"):  # otherwise the brackets are those of an IPv6 address
        inner = inner[1:-1]
    return list(dict.fromkeys(part.strip() for part in inner.split(",") if part.strip()))


def check_nodes(nodes: Sequence[str], policy: FanoutPolicy) -> None:
    """Refuse before anything is sent: no nodes, bad addresses, plaintext off this machine."""
    if not nodes:
        raise ConfigError("no nodes to ask: give --nodes host:port,… or list them under fleet.nodes in ingero.yaml")
    for node in nodes:
        scheme, host = split_scheme(node)
        if scheme not in ("", "http", "https") or not host:
            raise ConfigError(f"{node!r} is not a node; write host:port")
        if scheme == "http" and policy.require_tls and not is_loopback(host):
            raise ConfigError(
                f"node {node} would be asked in plaintext, token included; use https, or allow it with "
                "--no-fleet-require-tls on a network you trust"
            )


def split_host_port(node: str) -> tuple[str, int]:
    """Host and port of a node's address."""
    host, _, port = split_scheme(node)[1].rpartition(":")
    if not port.isdigit() or not host:
        raise ConfigError(f"{node!r} is not a node; write host:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def client_tls(ca: Path | None, cert: Path | None, key: Path | None) -> ClientTls:
    """Files as given on the command line; both halves of a pair or neither."""
    if (cert is None) != (key is None):
        raise AuthError("--client-cert and --client-key come together; give both or none")
    return ClientTls(ca=ca, cert=cert, key=key)


def split_scheme(node: str) -> tuple[str, str]:
    """Scheme, empty when none was written, and the rest of a node's address."""
    scheme, separator, rest = node.partition("://")
    return (scheme, rest.rstrip("/")) if separator else ("", node.rstrip("/"))
