"""The store process ends at any moment: what is durable is still loaded, by the next one."""

import asyncio
import errno
import os
import signal
from asyncio.subprocess import Process
from collections.abc import Sequence
from pathlib import Path

import pytest
import uvloop
from tests.support.echo_samples import metrics_body
from tests.support.stores import store_settings
from tests.support.waiting import until_async

from ingero.children.aio import start_worker
from ingero.contract.otlp.rows import Signal
from ingero.echo.engine import Engine, EngineSettings
from ingero.echo.store.api import StoreRestarting
from ingero.echo.store.wire import Durable


async def replace_store(engine: Engine) -> None:
    """Kill the store while it is told what is durable, in every turn of the event loop."""
    store = engine.store
    pid = store.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)
    while store.pid == pid:
        store._told = 0  # as if a request had just been acknowledged
        try:
            store._send(Durable(1, now=False))
        except StoreRestarting:
            await asyncio.sleep(0.06)  # one turn of telling, while the socket is closed
        await asyncio.sleep(0)
    await until_async(lambda: store.pid is not None)


async def load_after_replacements(folder: Path) -> int:
    engine = Engine(EngineSettings(**store_settings(folder / "echo.db"), segment_bytes=1 << 20))
    await engine.start()
    try:
        for number in range(3):
            await replace_store(engine)
            accepted = await engine.submit(Signal.METRICS, metrics_body(first=number))
            # nobody asks for it: the next store has to be told on its own
            await until_async(lambda seq=accepted.seq: engine.store.applied_seq >= seq)
        return engine.store.applied_seq
    finally:
        await engine.stop()


def test_the_next_store_is_told_what_is_durable_however_the_last_one_ended(tmp_path: Path) -> None:
    """On the event loop that Echo uses, which raises where asyncio only logs."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(load_after_replacements(tmp_path)) == 3


async def test_a_store_that_the_system_cannot_start_at_once_is_started_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = Engine(EngineSettings(**store_settings(tmp_path / "echo.db"), segment_bytes=1 << 20))
    await engine.start()
    refused = []

    async def refuse_once(command: list[str], pass_fds: Sequence[int]) -> Process:
        if not refused:
            refused.append(OSError(errno.EAGAIN, "Resource temporarily unavailable"))
            raise refused[0]
        return await start_worker(command, pass_fds)

    monkeypatch.setattr("ingero.echo.store.client.start_worker", refuse_once)
    try:
        await replace_store(engine)
        accepted = await engine.submit(Signal.METRICS, metrics_body(first=1))
        await until_async(lambda: engine.store.applied_seq >= accepted.seq)
    finally:
        await engine.stop()
    assert refused
