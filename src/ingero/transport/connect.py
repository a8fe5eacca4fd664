"""One HTTP connection for a command that asks a server once: TLS by scheme, a wrong address said before any I/O."""

import http.client
from urllib.parse import urlsplit

from ingero.errors import ConfigError
from ingero.transport.tls import ClientTls, client_context


def connection_to(
    url: str, tls: ClientTls, *, http_port: int, https_port: int, timeout_s: float, example: str
) -> http.client.HTTPConnection:
    """Not yet connected. The ports are for a URL without one; raises ConfigError with `example` for what is no URL."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        host, port = None, None
    if not host or parts.scheme not in ("http", "https"):
        raise ConfigError(f"{url!r} is not an address to ask; write {example}")
    if parts.scheme == "http":
        return http.client.HTTPConnection(host, port or http_port, timeout=timeout_s)
    context = client_context(tls)
    return http.client.HTTPSConnection(host, port or https_port, timeout=timeout_s, context=context)
