"""gRPC pushes to Fleet, in a closed loop or at fixed times; the Python client limits the rate."""

import asyncio
import contextlib
import time
from typing import Any

import grpc
import numpy as np

from ingero.contract.otlp.values import MetricsRequest
from ingero.transport.otlp.server_grpc import PATHS

CHANNELS = 8
WORKERS = 16


def closed_loop(address: str, bodies: list[bytes], seconds: float) -> int:
    """Return the number of calls that were answered."""
    return asyncio.run(_with_calls(address, lambda calls: _closed(calls, bodies, seconds)))


def open_loop(address: str, bodies: list[bytes], rate: float, seconds: float) -> dict[str, float]:
    """Return p50 and p99 from the scheduled time, and answers per second."""
    return asyncio.run(_with_calls(address, lambda calls: _open(calls, bodies, rate, seconds)))


async def _with_calls(address: str, load: Any) -> Any:
    options = (("grpc.use_local_subchannel_pool", 1),)  # or all channels share one connection
    channels = [grpc.aio.insecure_channel(address, options) for _ in range(CHANNELS)]
    try:
        return await load([channel.unary_unary(PATHS[MetricsRequest]) for channel in channels])
    finally:
        for channel in channels:
            await channel.close()


async def _closed(calls: list[Any], bodies: list[bytes], seconds: float) -> int:
    done, end = 0, time.perf_counter() + seconds

    async def work(number: int) -> None:
        nonlocal done
        while time.perf_counter() < end:
            await calls[number % CHANNELS](bodies[done % len(bodies)])
            done += 1

    await asyncio.gather(*(work(number) for number in range(WORKERS)))
    return done


async def _open(
    calls: list[Any], bodies: list[bytes], rate: float, seconds: float
) -> dict[str, float]:
    took_s: list[float] = []
    began = time.perf_counter()

    async def one(number: int, due: float) -> None:
        # Calls beyond what gRPC queues are not answered.
        with contextlib.suppress(grpc.aio.AioRpcError):
            await calls[number % CHANNELS](bodies[number % len(bodies)])
            took_s.append(time.perf_counter() - due)

    running = set()
    for number in range(int(rate * seconds)):
        due = began + number / rate
        if (early_s := due - time.perf_counter()) > 0:
            await asyncio.sleep(early_s)
        task = asyncio.create_task(one(number, due))
        running.add(task)
        task.add_done_callback(running.discard)
    await asyncio.gather(*running)
    p50, p99 = np.percentile(np.array(took_s) * 1e3, (50, 99))
    return {
        "p50_ms": p50,
        "p99_ms": p99,
        "per_s": len(took_s) / (time.perf_counter() - began),
        "done": len(took_s),
    }
