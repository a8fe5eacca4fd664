"""The address that an agent pushes to: protocol, security and URLs from what a user writes."""

import re
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import quote, urlsplit

from ingero.contract.api_paths import FLEET_THRESHOLD, OTLP_LOGS, OTLP_METRICS, OTLP_TRACES
from ingero.contract.names import CLUSTER_QUERY, NODE_QUERY
from ingero.errors import ConfigError
from ingero.transport.tls import is_loopback

GRPC_PORT = 4317


class Protocol(StrEnum):
    """The protocol of a push."""

    HTTP_JSON = "http/json"
    HTTP_PROTOBUF = "http/protobuf"
    GRPC = "grpc"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where to push. `base` is `host:port` for gRPC and a URL without path suffix for HTTP."""

    base: str
    is_secure: bool
    protocol: Protocol

    def push_url(self, cluster: str, node: str) -> str:
        """Return the URL with cluster and node in it, for load balancers and logs."""
        return f"{self.base}{OTLP_METRICS}?{_query(cluster, node)}"

    def logs_url(self, cluster: str, node: str) -> str:
        """Return the URL for log records, with cluster and node in it like those of pushes."""
        return f"{self.base}{OTLP_LOGS}?{_query(cluster, node)}"

    @property
    def traces_url(self) -> str:
        return f"{self.base}{OTLP_TRACES}"


def _query(cluster: str, node: str) -> str:
    return f"{CLUSTER_QUERY}={quote(cluster, safe='')}&{NODE_QUERY}={quote(node, safe='')}"


def parse_endpoint(
    text: str, *, insecure: bool = False, protocol: Protocol | None = None
) -> Endpoint:
    """Parse an address; port 4317 without a path means gRPC, all else HTTP with JSON.

    `protocol` overrides that choice. A URL keeps its scheme; a bare `host:port` is https unless
    `insecure`.
    """
    scheme, host, path = _split(text, insecure, OTLP_METRICS)
    port = urlsplit(f"//{host}").port
    chosen = protocol or (Protocol.GRPC if port == GRPC_PORT and not path else Protocol.HTTP_JSON)
    if chosen is Protocol.GRPC:
        if path:
            raise ConfigError(
                f"endpoint {text!r} has a path, which gRPC does not use; "
                "remove it or use an http protocol"
            )
        return Endpoint(host if port else f"{host}:{GRPC_PORT}", scheme == "https", chosen)
    return Endpoint(f"{scheme}://{host}{path}", scheme == "https", chosen)


def refuse_plaintext(address: str, override: str) -> None:
    """Raise ConfigError for another machine: data and token would be sent in plain text."""
    if not is_loopback(address):
        raise ConfigError(
            f"{address} is another machine: data, and a token if there is one, would travel in "
            f"plain text; use https://, or allow it with {override}"
        )


def threshold_url(text: str, cluster: str, *, insecure: bool = False) -> str:
    """Return the URL of the threshold API, from its base or from the whole URL."""
    scheme, host, path = _split(text, insecure, FLEET_THRESHOLD)
    return f"{scheme}://{host}{path}{FLEET_THRESHOLD}?{CLUSTER_QUERY}={quote(cluster, safe='')}"


def _split(text: str, insecure: bool, suffix: str) -> tuple[str, str, str]:
    """Return scheme, host with port, and path without trailing slashes and `suffix`."""
    written = text.strip()
    if not written:
        raise ConfigError("the endpoint is empty; give host:port or a URL")
    if "://" not in written:
        written = f"{'http' if insecure else 'https'}://{written}"
    try:
        parts = urlsplit(written)
        port = parts.port
    except ValueError as error:
        raise ConfigError(f"endpoint {text!r} cannot be read: {error}") from None
    if parts.scheme not in ("http", "https"):
        raise ConfigError(f"endpoint {text!r} must start with http:// or https://, or be host:port")
    if not parts.hostname or re.search(r"\s", written) or port == 0:
        raise ConfigError(f"endpoint {text!r} has no host; give host:port or a URL")
    if parts.username is not None or parts.query or parts.fragment:
        raise ConfigError(
            f"endpoint {text!r} must be a plain address without user, query or fragment"
        )
    return parts.scheme, parts.netloc, parts.path.rstrip("/").removesuffix(suffix).rstrip("/")
