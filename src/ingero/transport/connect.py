"""One HTTP connection for a command that sends one request; TLS by scheme."""

import http.client
import os
import ssl
from typing import Final
from urllib.parse import urlsplit

from ingero.errors import ConfigError
from ingero.transport.tls import ClientTls, client_context

NO_TLS: Final = "the server there does not use TLS; write http://, or is it another port?"
NEEDS_TLS: Final = "the server closed the connection; if it uses TLS, write https://"
NOT_HTTP: Final = "the server there does not answer in HTTP"
_CLOSED: Final = "the server closed the connection"
_BROKE_OFF: Final = "the answer broke off"
_AIOHTTP: Final = "aiohttp.client_exceptions"
# Texts of these errors hold the URL, which may be a secret, or bytes of a stranger. They are found
# by name, because aiohttp is loaded only where it is used.
_REASONS: Final = {
    "http.client.RemoteDisconnected": _CLOSED,
    "http.client.IncompleteRead": _BROKE_OFF,
    "http.client.InvalidURL": "the URL is not valid",
    "http.client.HTTPException": NOT_HTTP,
    f"{_AIOHTTP}.ClientResponseError": NOT_HTTP,
    f"{_AIOHTTP}.InvalidURL": "the URL is not valid",
    f"{_AIOHTTP}.ServerDisconnectedError": _CLOSED,
    f"{_AIOHTTP}.ClientConnectionResetError": _CLOSED,
    f"{_AIOHTTP}.ClientPayloadError": _BROKE_OFF,
    f"{_AIOHTTP}.ClientError": "the connection failed",
}


def connection_to(
    url: str, tls: ClientTls, *, http_port: int, https_port: int, timeout_s: float, example: str
) -> http.client.HTTPConnection:
    """Return a connection that is not yet open; raise ConfigError with `example` for a wrong URL.

    The ports are for a URL without a port.
    """
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


def is_plaintext(error: Exception) -> bool:
    """Return whether TLS failed because the server answers without it."""
    cause = _cause(error)
    return isinstance(cause, ssl.SSLError) and _tls_reason(cause) in (
        "WRONG_VERSION_NUMBER",
        "RECORD_LAYER_FAILURE",
    )


def plain_reason(error: Exception) -> str:
    """Return why a connection failed in plain words, without error numbers and source files.

    The text contains neither the URL nor what the server sent.
    """
    cause = _cause(error)
    if isinstance(cause, ssl.SSLError):  # its number is none of the system
        untrusted = getattr(cause, "verify_message", None)
        reason = untrusted or _tls_reason(cause).replace("_", " ").lower() or cause.strerror
        return f"TLS failed: {reason or type(cause).__name__}"
    if isinstance(cause, OSError) and cause.errno is not None:
        number = cause.errno  # negative for names that do not resolve
        return os.strerror(number) if number > 0 else cause.strerror or str(cause)
    if isinstance(cause, TimeoutError):
        return "no answer in time"
    kinds = (f"{kind.__module__}.{kind.__name__}" for kind in type(cause).__mro__)
    reason = next((_REASONS[kind] for kind in kinds if kind in _REASONS), None)
    return reason or str(cause) or type(cause).__name__


def _cause(error: Exception) -> Exception:
    """Return the error of the system or of the TLS handshake that aiohttp has wrapped."""
    cause: Exception = getattr(error, "os_error", error)
    return cause


def _tls_reason(error: ssl.SSLError) -> str:
    """Return OpenSSL's name of what failed; an error that Python made itself has none."""
    return getattr(error, "reason", None) or ""


def failure_text(url: str, error: Exception, otherwise: str) -> str:
    """Return what went wrong and what to do: the right scheme, or else `otherwise`."""
    if is_plaintext(error):
        return NO_TLS
    if isinstance(error, http.client.RemoteDisconnected | ConnectionResetError) and url.startswith(
        "http://"
    ):
        return NEEDS_TLS
    return f"{plain_reason(error)}; {otherwise}"
