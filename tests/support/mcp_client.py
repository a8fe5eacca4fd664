"""A client of MCP."""

import contextlib
from collections.abc import AsyncIterator

import httpx2
from mcp import Client
from mcp.client.streamable_http import streamable_http_client
from tests.support.echo_service import TOKEN, RunningEcho


@contextlib.asynccontextmanager
async def mcp_client(echo: RunningEcho, path: str) -> AsyncIterator[Client]:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        httpx2.AsyncClient(headers=headers) as http,
        Client(streamable_http_client(echo.url(path), http_client=http)) as client,
    ):
        yield client
