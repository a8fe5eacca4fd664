"""Supervised services: restarts and logs (Fleet and Echo themselves run in tests/e2e)."""

import asyncio
import sys
from pathlib import Path

import pytest
from tests.support.waiting import PATIENCE_S

from ingero.children.supervisor import SupervisedService, bound_log
from ingero.errors import Unavailable

SERVICE = """
import json, signal, os
print(json.dumps({"addresses": {"http": str(os.getpid())}}), flush=True)
signal.pause()
"""


def test_a_service_that_ends_is_started_again_and_stops_on_request(tmp_path: Path) -> None:
    async def scenario() -> tuple[int, set[str]]:
        command = [sys.executable, "-c", SERVICE]
        service = SupervisedService("echo", lambda: command, tmp_path / "echo.log")
        await service.start()
        pids = {service.addresses["http"]}
        watching = asyncio.create_task(service.watch(first_pause_s=0.01))
        async with asyncio.timeout(PATIENCE_S):
            await service.stop()
            while len(pids) < 2:
                await asyncio.sleep(0.01)
                pids.add(service.addresses["http"])
        watching.cancel()
        await service.stop()
        return service.restarts, pids

    restarts, pids = asyncio.run(scenario())
    assert (restarts, len(pids)) == (1, 2)


def test_a_service_that_does_not_start_gives_its_last_words(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('port 4317 is in use')"]
    service = SupervisedService("fleet", lambda: command, tmp_path / "fleet.log")
    with pytest.raises(Unavailable, match=r"fleet did not start: port 4317 is in use; its log is"):
        asyncio.run(service.start())


def test_a_log_stays_bounded_and_its_writer_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "echo.log"
    with log.open("ab", buffering=0) as writer:
        writer.write(b"a" * 100)
        bound_log(log, 100)
        assert log.stat().st_size == 100
        writer.write(b"b")
        bound_log(log, 100)
        writer.write(b"c")
    assert log.read_bytes() == b"c"
    assert (tmp_path / "echo.log.1").read_bytes() == b"a" * 100 + b"b"
