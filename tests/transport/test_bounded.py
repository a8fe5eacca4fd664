"""Bodies of any size and in any number of pieces, read to a limit."""

import contextlib
from collections.abc import AsyncIterator

import aiohttp
import pytest
from starlette.requests import Request
from tests.support.pieces import replying_in_pieces

from ingero.errors import TooLarge
from ingero.transport.bounded import read_reply_beginning, read_reply_body, read_request_body


def request_of(*pieces: bytes, declared: int | None = None) -> Request:
    arriving = iter(pieces)

    async def receive() -> dict[str, object]:
        piece = next(arriving)
        return {"type": "http.request", "body": piece, "more_body": piece is not pieces[-1]}

    headers = [] if declared is None else [(b"content-length", str(declared).encode())]
    return Request({"type": "http", "method": "POST", "headers": headers}, receive)


@contextlib.asynccontextmanager
async def reply_of(*pieces: bytes) -> AsyncIterator[aiohttp.ClientResponse]:
    """The reply of a server that sends these pieces one by one."""
    async with (
        replying_in_pieces(*pieces) as address,
        aiohttp.ClientSession() as session,
        session.get(f"http://{address}/") as reply,
    ):
        yield reply


async def test_request_up_to_the_limit_is_read_whole() -> None:
    assert await read_request_body(request_of(b"ab", b"cd", declared=4), 4) == b"abcd"
    assert await read_request_body(request_of(b""), 4) == b""


async def test_request_beyond_the_limit_is_refused_before_and_while_it_is_read() -> None:
    with pytest.raises(TooLarge, match="larger than 4 bytes"):
        await read_request_body(request_of(declared=5), 4)
    with pytest.raises(TooLarge, match="larger than 4 bytes"):
        await read_request_body(request_of(b"abc", b"de", b"never asked for"), 4)


async def test_reply_in_pieces_is_read_whole() -> None:
    async with reply_of(b"ab", b"cd", b"e") as reply:
        assert await read_reply_body(reply, 5) == b"abcde"


async def test_reply_beyond_the_limit_is_refused_or_cut() -> None:
    async with reply_of(b"abc", b"def") as reply:
        with pytest.raises(TooLarge, match="larger than 5 bytes"):
            await read_reply_body(reply, 5)
    async with reply_of(b"abc", b"def") as reply:
        assert await read_reply_beginning(reply, 5) == b"abcde"
