"""Where to push: a Fleet address as people write it, turned into protocol, security and URLs."""

import re
from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import quote, urlsplit

from ingero.contract.api_paths import FLEET_THRESHOLD, OTLP_METRICS, OTLP_TRACES
from ingero.contract.names import CLUSTER_QUERY, NODE_QUERY
from ingero.errors import ConfigError
from ingero.transport.tls import is_loopback

GRPC_PORT = 4317


class Protocol(StrEnum):
    """How a push travels."""

    HTTP_JSON = "http/json"
    HTTP_PROTOBUF = "http/protobuf"
    GRPC = "grpc"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """`base` has no trailing slash and none of our paths; it is `host:port` for gRPC, a URL for HTTP."""

    base: str
    is_secure: bool
    protocol: Protocol

    def push_url(self, cluster: str, node: str) -> str:
        """Cluster and node also in the query, so that balancers and logs can tell them without reading the body."""
        return f"{self.base}{OTLP_METRICS}?{CLUSTER_QUERY}={quote(cluster, safe='')}&{NODE_QUERY}={quote(node, safe='')}"

    @property
    def traces_url(self) -> str:
        return f"{self.base}{OTLP_TRACES}"


def parse_endpoint(
    text: str, *, insecure: bool = False, protocol: Protocol | None = None
) -> Endpoint:
    """Port 4317 without a path means gRPC, anything else HTTP with JSON; `protocol` decides otherwise.

    A URL keeps its scheme; a bare `host:port` is https unless `insecure`.
    """
    scheme, host, path = _split(text, insecure, OTLP_METRICS)
    port = urlsplit(f"//{host}").port
    chosen = protocol or (Protocol.GRPC if port == GRPC_PORT and not path else Protocol.HTTP_JSON)
    if chosen is Protocol.GRPC:
        if path:
            raise ConfigError(
                f"endpoint {text!r} has a path, which gRPC has not; remove it or use an http protocol"
            )
        return Endpoint(host if port else f"{host}:{GRPC_PORT}", scheme == "https", chosen)
    return Endpoint(f"{scheme}://{host}{path}", scheme == "https", chosen)


def refuse_plaintext(address: str, override: str) -> None:
    """Raises ConfigError for an address on another machine: measurements and a token would travel in plain text."""
    if not is_loopback(address):
        raise ConfigError(
            f"{address} is another machine: data, and a token if there is one, would travel in plain text; "
            f"use https://, or allow it with {override}"
        )


def threshold_url(text: str, cluster: str, *, insecure: bool = False) -> str:
    """The address of the GET fallback, from its base or from the whole address."""
    scheme, host, path = _split(text, insecure, FLEET_THRESHOLD)
    return f"{scheme}://{host}{path}{FLEET_THRESHOLD}?{CLUSTER_QUERY}={quote(cluster, safe='')}"


def _split(text: str, insecure: bool, suffix: str) -> tuple[str, str, str]:
    """Scheme, host with port, and path without trailing slashes and without `suffix`."""
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
