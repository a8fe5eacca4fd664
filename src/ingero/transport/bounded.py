"""Bodies of HTTP requests and replies, read in full but never beyond a size limit.

Imports nothing heavy at run time, because commands that send one request import this module.
"""

import http.client
from typing import TYPE_CHECKING

from ingero.errors import TooLarge

if TYPE_CHECKING:
    import aiohttp
    from starlette.requests import Request

_CHUNK_BYTES = 1 << 16


async def read_request_body(request: "Request", limit_bytes: int) -> bytes:
    """Return the body of a request to a server of ours; raise TooLarge beyond the limit."""
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > limit_bytes:
        raise _too_large(limit_bytes)
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > limit_bytes:
            raise _too_large(limit_bytes)
    return bytes(body)


async def read_reply_body(reply: "aiohttp.ClientResponse", limit_bytes: int) -> bytes:
    """Return the body of a reply; raise TooLarge and drop the connection beyond the limit."""
    body = await _read_until(reply, limit_bytes)
    if len(body) > limit_bytes:
        reply.close()
        raise _too_large(limit_bytes)
    return body


async def read_reply_beginning(reply: "aiohttp.ClientResponse", limit_bytes: int) -> bytes:
    """Return the first `limit_bytes` bytes of a reply, for an error message that quotes it."""
    return (await _read_until(reply, limit_bytes))[:limit_bytes]


async def _read_until(reply: "aiohttp.ClientResponse", limit_bytes: int) -> bytes:
    """Read to the end or beyond the limit; one `read(n)` returns only what has arrived."""
    body = bytearray()
    async for chunk in reply.content.iter_chunked(_CHUNK_BYTES):
        body += chunk
        if len(body) > limit_bytes:
            break
    return bytes(body)


def read_response_body(response: http.client.HTTPResponse, limit_bytes: int) -> bytes:
    """Return the body of a reply that a command waits for; raise TooLarge beyond the limit."""
    body = response.read(limit_bytes + 1)
    if len(body) > limit_bytes:
        raise _too_large(limit_bytes)
    return body


def _too_large(limit_bytes: int) -> TooLarge:
    return TooLarge(f"the body is larger than {limit_bytes} bytes")
