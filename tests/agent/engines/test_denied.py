"""Engines that the agent may not look at, and a disk that takes no more logs."""

import asyncio
import codecs
import logging
import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.small_disk import mounted

from ingero.agent.engines import find as finding
from ingero.agent.engines import ports
from ingero.agent.engines.find import EngineFinder
from ingero.agent.engines.names import CommandLine
from ingero.agent.engines.watch import EngineWatch
from ingero.contract.measurements.engines import EngineKind
from ingero.contract.types import Identity


@pytest.fixture
def listening(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """This process as the server of an engine, and alone on the machine."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        line = CommandLine(EngineKind.VLLM, is_server=True, port=port)
        monkeypatch.setattr(finding, "process_ids", lambda: [os.getpid()])
        lines = {os.getpid(): line}
        monkeypatch.setattr(finding, "command_line_of", lambda pid: lines.get(pid, CommandLine()))
        yield port


@pytest.fixture
def denied(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the kernel refuse the open files of every process, as those of other users."""
    real = os.listdir

    def refuse(path: str) -> list[str]:
        if path.endswith("/fd"):
            raise PermissionError(13, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(ports.os, "listdir", refuse)


def test_an_engine_is_found_where_its_files_may_be_read(listening: int) -> None:
    finder = EngineFinder()
    (found,) = finder.find()
    assert [at.port for at in found.ports] == [listening]
    assert finder.denied == set()


@pytest.mark.usefixtures("denied", "listening")
async def test_an_engine_of_another_user_is_named_once_with_what_would_help(
    caplog: pytest.LogCaptureFixture,
) -> None:
    watch = EngineWatch(None, Identity(node="n"))
    with caplog.at_level(logging.WARNING):
        for second in range(3):
            await watch._find(float(second))
    (said,) = [record for record in caplog.records if record.msg == "engine_not_watched"]
    assert said.__dict__["engine_pid"] == os.getpid()
    assert said.__dict__["why"] == (
        "its ports cannot be read; run the agent as root or as the user of the engine"
    )
    assert watch.engines == {}
    watch._pool.shutdown()


@pytest.mark.usefixtures("denied", "listening")
async def test_watching_goes_on_where_the_log_has_no_room(tmp_path: Path) -> None:
    """The watch writes nothing but its log."""
    watch, stop = EngineWatch(None, Identity(node="n"), patience_s=0.1), asyncio.Event()
    logger = logging.getLogger("ingero.agent.engines.watch")
    with mounted(tmp_path, "4k") as disk:
        (disk / "ballast").write_bytes(bytes(4096))
        file = (disk / "agent.log").open("ab", buffering=0)
        handler = logging.StreamHandler(codecs.getwriter("utf-8")(file))
        logger.addHandler(handler)
        try:
            running = asyncio.create_task(watch.run(stop))
            async with asyncio.timeout(10):
                while not watch._denied:
                    await asyncio.sleep(0.01)
            assert not running.done()
            assert watch.counters.failed == 0
            stop.set()
            await running
        finally:
            logger.removeHandler(handler)
            file.close()
        assert (disk / "agent.log").read_bytes() == b""
