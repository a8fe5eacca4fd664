"""Why a node did not answer, in words that a person can act on."""

import os
from typing import Final

import aiohttp
import msgspec

from ingero.transport.fanout.nodes import split_scheme

NOT_DECODABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def error_text(text: str) -> str:
    """The message in the body of a refusal, or the body itself."""
    try:
        return str(msgspec.json.decode(text)["error"])
    except (*NOT_DECODABLE, KeyError, TypeError):
        return text


def one_line(text: str) -> str:
    """What a node says of itself, with nothing in it that a terminal would act on."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(text.split()))


def connection_failure(error: Exception) -> str:
    """Why no answer came."""
    if isinstance(error, aiohttp.ClientConnectorSSLError):
        return f"TLS failed: {error.certificate_error if hasattr(error, 'certificate_error') else error.os_error}"
    if isinstance(error, aiohttp.ClientConnectorError):
        number = error.os_error.errno or 0  # names that do not resolve have negative ones
        reason = (
            os.strerror(number) if number > 0 else error.os_error.strerror or str(error.os_error)
        )
        return f"cannot connect: {reason or 'it hung up before TLS was agreed; we want TLS 1.3'}"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "it closed the connection without an answer"
    return (
        f"the answer broke off: {error}"
        if str(error)
        else f"the answer broke off ({type(error).__name__})"
    )


def changed_certificate(node: str, error: aiohttp.ServerFingerprintMismatch) -> str:
    """A node shows another certificate than the one trusted."""
    seen = ":".join(f"{byte:02X}" for byte in error.got)
    return (
        f"its certificate is not the trusted one (now {seen}); if the node was reinstalled, run "
        f"`ingero nodes trust {split_scheme(node)[1]}`"
    )
