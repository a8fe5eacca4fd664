"""The socket of an agent's health: a client that reads nothing holds nothing."""

import asyncio
from pathlib import Path

import pytest
from tests.support.waiting import until_async

from ingero.agent.service import health
from ingero.agent.service.health import AgentHealth, HealthServer

BODY = b"m" * (8 << 20)  # more than the kernel takes for a reader that does not read


async def test_a_client_that_does_not_read_is_disconnected(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "TIMEOUT_S", 0.05)
    server = HealthServer(tmp_path / "s.sock", _health, lambda: BODY)
    await server.start()
    reader, writer = await asyncio.open_unix_connection(server.path, limit=1024)
    writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
    received = len(await reader.readexactly(100))
    await until_async(lambda: len(asyncio.all_tasks()) == 1)  # the server has given up
    while part := await reader.read(1 << 16):
        received += len(part)
    assert received < len(BODY)
    writer.close()
    await writer.wait_closed()
    await server.close()


def _health() -> AgentHealth:
    return AgentHealth(True, True, "n", "v", 1, "d", [])
