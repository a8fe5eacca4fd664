"""Large bodies are decompressed and decoded outside the event loop, so that pushes do not wait."""

import asyncio
import contextlib
import gc
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, ParamSpec, TypeVar

from ingero.contract.otlp.body import decompress
from ingero.errors import MalformedPush, TooLarge

# A body of this size takes at most some 20 ms to decode, whatever it holds.
INLINE_BYTES: Final = 64 * 1024
INLINE_COMPRESSED_BYTES: Final = 4 * 1024  # decompressed, these are at most 1 MiB
MAX_HELD: Final = 4  # bodies that were decompressed and are not yet answered
SLICE_S: Final = 0.005  # of work in the event loop before other tasks run
TICK_SLICE_S: Final = 0.001  # of a tick, which comes every second and keeps all nodes waiting

P = ParamSpec("P")
T = TypeVar("T")


class Decompressor:
    """Decompresses the bodies of one endpoint, and bounds how many of them are held at once."""

    def __init__(self) -> None:
        self._held = asyncio.Semaphore(MAX_HELD)

    @contextlib.asynccontextmanager
    async def decompress(self, body: bytes, content_encoding: str) -> AsyncIterator[bytes]:
        """Yield the body without its Content-Encoding; raises MalformedPush or TooLarge."""
        if len(body) <= INLINE_COMPRESSED_BYTES or not content_encoding:
            yield decompress(body, content_encoding)
            return
        async with self._held:
            yield await asyncio.to_thread(decompress, body, content_encoding)


def unpack_small(body: bytes) -> bytes | None:
    """Return a gzip body that is cheap to decompress and to decode; None for all others."""
    if len(body) > INLINE_COMPRESSED_BYTES:
        return None
    try:
        return decompress(body, "gzip", INLINE_BYTES)
    except (MalformedPush, TooLarge):
        return None


class DecodingThread:
    """Decodes one body after the other, so that many large bodies need the memory of one."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, "decode")  # starts its thread when it is needed

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what `work` returns, or raise what it raises."""
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, lambda: _uncollected(work, args, kwargs))


LONGEST_PAUSE_S: Final = 5.0
_pauses = [0]  # how many threads decode now
_paused_s = [0.0]  # since when
_pausing = threading.Lock()


@contextlib.contextmanager
def without_collector() -> Iterator[None]:
    """Keep the garbage collector from running until all threads have left, or for some seconds.

    A large request becomes a million objects, all of them alive. A collector that runs meanwhile
    looks at every one, for 100 ms in which no other Python code runs, and finds no garbage.
    """
    with _pausing:
        _pauses[0] += 1
        if gc.isenabled():
            _paused_s[0] = time.monotonic()
            gc.disable()
    try:
        yield
    finally:
        with _pausing:
            _pauses[0] -= 1
            if not _pauses[0] or time.monotonic() - _paused_s[0] > LONGEST_PAUSE_S:
                gc.enable()


def _uncollected(work: Callable[P, T], args: Any, kwargs: Any) -> T:
    with without_collector():
        return work(*args, **kwargs)


def finish(steps: Generator[None, None, T]) -> T:
    """Run all steps at once and return their result."""
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result


async def finish_in_slices(steps: Generator[None, None, T], slice_s: float = SLICE_S) -> T:
    """Run all steps, let other tasks run in between, and return the result."""
    pause_s = time.perf_counter() + slice_s
    while True:
        try:
            next(steps)
        except StopIteration as done:
            result: T = done.value
            return result
        if time.perf_counter() > pause_s:
            await asyncio.sleep(0)
            pause_s = time.perf_counter() + slice_s
