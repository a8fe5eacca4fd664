"""Large bodies are decoded beside the event loop, which goes on meanwhile."""

import asyncio
import gc

import pytest

from ingero.transport.otlp import decoding
from ingero.transport.otlp.decoding import DecodingThread, without_collector


async def test_the_collector_does_not_run_while_something_is_decoded() -> None:
    """It would look at a million objects, all of them alive, while nothing else runs."""
    assert await DecodingThread().run(gc.isenabled) is False
    assert gc.isenabled()


async def test_the_collector_runs_again_after_the_last_thread_and_after_an_error() -> None:
    with without_collector():
        await asyncio.gather(*(DecodingThread().run(gc.isenabled) for _ in range(3)))
        assert not gc.isenabled()
    assert gc.isenabled()
    failed = await asyncio.gather(DecodingThread().run(int, "x"), return_exceptions=True)
    assert isinstance(failed[0], ValueError)
    assert gc.isenabled()


def test_threads_that_always_overlap_do_not_keep_the_collector_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with without_collector():
        with without_collector():
            pass
        assert not gc.isenabled()
        monkeypatch.setattr(decoding, "LONGEST_PAUSE_S", -1.0)
        with without_collector():
            pass
        assert gc.isenabled()
