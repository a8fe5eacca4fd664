"""Why a node did not answer, and what to do about it."""

import errno
import os
from typing import Final

import aiohttp
import msgspec

from ingero.transport.connect import plain_reason
from ingero.transport.fanout.nodes import split_scheme

NO_SERVER: Final = "is `ingero dashboard`, or the API of `ingero agent`, running there?"
NOT_DECODABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def error_text(text: str) -> str:
    """Return the message in the body of a refusal, or the body itself."""
    try:
        return str(msgspec.json.decode(text)["error"])
    except (*NOT_DECODABLE, KeyError, TypeError):
        return text


def one_line(text: str) -> str:
    """Return text from a node without anything that a terminal would interpret."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))


def connection_failure(error: Exception) -> str:
    """Return why there is no answer."""
    if isinstance(error, aiohttp.ClientConnectorSSLError):
        return f"TLS failed: {getattr(error, 'certificate_error', error.os_error)}"
    if isinstance(error, aiohttp.ClientConnectorError):
        number = error.os_error.errno or 0  # negative for names that do not resolve
        reason = (
            os.strerror(number) if number > 0 else error.os_error.strerror or str(error.os_error)
        )
        closed = "it closed the connection during the handshake; TLS 1.3 is required"
        hint = f"; {NO_SERVER}" if number == errno.ECONNREFUSED else ""
        return f"cannot connect: {reason or closed}{hint}"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "it closed the connection without an answer"
    return plain_reason(error)


def changed_certificate(node: str, error: aiohttp.ServerFingerprintMismatch) -> str:
    """Return the failure of a node whose certificate is not the trusted one."""
    seen = ":".join(f"{byte:02X}" for byte in error.got)
    return (
        f"its certificate is not the trusted one (now {seen}); if the node was reinstalled, run "
        f"`ingero nodes trust {split_scheme(node)[1]}`"
    )
