"""One HTTP connection for a command that asks a server once: TLS by scheme, a wrong address said before any I/O."""

import http.client
import ssl
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


def failure_text(url: str, error: Exception, otherwise: str) -> str:
    """What went wrong with such a connection and what to do: about the scheme where that is wrong, else `otherwise`."""
    if isinstance(error, ssl.SSLError) and error.reason in (
        "WRONG_VERSION_NUMBER",
        "RECORD_LAYER_FAILURE",
    ):
        return "it does not speak TLS there; write http://, or is it another port?"
    if isinstance(error, http.client.RemoteDisconnected | ConnectionResetError) and url.startswith(
        "http://"
    ):
        return "somebody hung up; if it speaks TLS, write https://"
    if isinstance(
        error, http.client.HTTPException
    ):  # its text is what came, and what came is not text
        return f"what answers does not speak HTTP; {otherwise}"
    return f"{error}; {otherwise}"
