"""The parent's side of the store process: starts it, sends questions, replaces it when it ends."""

import asyncio
import contextlib
import logging
import socket
from collections.abc import Callable
from typing import Any, Final

import msgspec

from ingero.children.aio import start_worker, wait_or_kill
from ingero.children.process import module_command
from ingero.echo.store.api import (
    ColumnResult,
    EndedStore,
    QueryFailed,
    QueryLimits,
    QueryResult,
    StoreCrashed,
    StoreRestarting,
    StoreStats,
)
from ingero.echo.store.wire import (
    LENGTH,
    REPLACE_ME,
    Answer,
    Ask,
    Durable,
    Progress,
    Ready,
    Stop,
    StoreSettings,
    ToStore,
    decode_to_parent,
    encode,
)
from ingero.errors import StoreError, Unavailable

log = logging.getLogger(__name__)

START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 60.0
COME_BACK_S: Final = 15.0
TELL_EVERY_S: Final = 0.05
FIRST_RESTART_S: Final = 0.1
LONGEST_RESTART_S: Final = 5.0
AHEAD_BYTES: Final = 4 << 20  # read at once: columns are large, and each pause costs a wake-up
_FAILURES: Final = ("sql_refused", "bad_sql", "timeout", "out_of_memory", "unavailable")


class StoreClient:
    """Runs one store process at a time. All methods run in the event loop."""

    def __init__(self, settings: StoreSettings, on_progress: Callable[[Progress], None]) -> None:
        self._settings = settings
        self._on_progress = on_progress
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None
        self._waiting: dict[int, asyncio.Future[Any]] = {}
        self._next_id = 0
        self._durable = self._told = 0
        self._barriers: list[tuple[int, asyncio.Future[None]]] = []
        self._tasks: list[asyncio.Task[None]] = []
        self._stopping = False
        self._up = asyncio.Event()
        self.applied_seq = 0
        self.restarts = 0
        self.progress = Progress(0)

    @property
    def pid(self) -> int | None:
        """The process id of the store, or None while it is being replaced."""
        return self._process.pid if self._process and self._writer else None

    async def start(self) -> int:
        """Start the first process and return the applied sequence.

        Raises StoreError if the database cannot be opened.
        """
        reader = await self._spawn()
        self._tasks = [
            asyncio.create_task(self._supervise(reader)),
            asyncio.create_task(self._tell()),
        ]
        return self.applied_seq

    async def stop(self) -> None:
        """Let the store load what is durable and exit.

        A store that is being replaced gets the time to start again.
        """
        if self._tasks:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(COME_BACK_S):
                    await self._up.wait()
        self._stopping = True
        process = self._process
        if process is not None and self._writer is not None:
            with contextlib.suppress(ConnectionError, StoreRestarting):
                self._send(Durable(self._durable, now=True))
                self._send(Stop())
                await self._writer.drain()
            await wait_or_kill(process, STOP_TIMEOUT_S)
            if process.returncode:
                log.warning(
                    "stopped_before_loaded",
                    extra={
                        "store_status": process.returncode,
                        "requests": self._durable - self.applied_seq,
                        "next": "nothing is lost: the journal keeps them for the next start",
                    },
                )
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._fail_waiting(StoreRestarting("Echo is stopping"))
        self._hang_up()

    def set_durable(self, seq: int) -> None:
        """Note that the journal holds everything up to `seq`."""
        self._durable = max(self._durable, seq)

    async def query(self, sql: str, params: list[Any], limits: QueryLimits) -> QueryResult:
        """Run one statement in a read-only transaction; raise QueryFailed or StoreRestarting."""
        return msgspec.convert(
            await self.ask("query", {"sql": sql, "params": params, "limits": limits}), QueryResult
        )

    async def columns(self, sql: str, params: list[Any], limits: QueryLimits) -> ColumnResult:
        """Run one statement like `query`, and return columns."""
        return msgspec.convert(
            await self.ask("columns", {"sql": sql, "params": params, "limits": limits}),
            ColumnResult,
        )

    async def user_sql(
        self, sql: str, clusters: list[str] | None, limits: QueryLimits
    ) -> QueryResult:
        """Run a user's SQL over the rows of `clusters`, or over all rows for None.

        Raises QueryFailed or StoreRestarting.
        """
        return msgspec.convert(
            await self.ask("sql", {"sql": sql, "clusters": clusters, "limits": limits}), QueryResult
        )

    async def stats(self) -> StoreStats:
        return msgspec.convert(await self.ask("stats", {}), StoreStats)

    async def audit(self, rows: list[list[Any]]) -> None:
        """Append rows to `audit_log` in the order of its columns."""
        await self.ask("audit", {"rows": rows})

    async def quarantine(self, what: str, ids: list[str]) -> list[dict[str, str]]:
        """Retry or drop requests in quarantine; return the outcome of each."""
        answer: list[dict[str, str]] = await self.ask("quarantine", {"what": what, "ids": ids})
        return answer

    async def backup(self, path: str) -> int:
        """Copy the database to `path` on this machine; return the applied sequence in the copy."""
        return int(await self.ask("backup", {"path": path}))

    async def wait_applied(self, sequence: int, timeout_s: float) -> None:
        """Wait until everything up to `sequence` can be queried; Unavailable after `timeout_s`."""
        if sequence <= self.applied_seq:
            return
        barrier: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._barriers.append((sequence, barrier))
        if self._writer is not None:
            with contextlib.suppress(StoreRestarting):
                self._send(Durable(self._durable, now=True))
                self._told = self._durable
        try:
            async with asyncio.timeout(timeout_s):
                await barrier
        except TimeoutError:
            behind = sequence - self.applied_seq
            raise Unavailable(
                f"the store is {behind} requests behind after {timeout_s:g} s; try again later"
            ) from None
        finally:
            self._barriers = [pair for pair in self._barriers if pair[1] is not barrier]

    async def ask(self, what: str, arguments: dict[str, Any]) -> Any:
        """Ask the store process; raise QueryFailed, StoreRestarting or StoreError."""
        if self._writer is None:
            raise StoreRestarting("it is starting")
        self._next_id += 1
        identifier = self._next_id
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._waiting[identifier] = future
        try:
            self._send(Ask(identifier, what, arguments))
            answer: Answer = await future
        finally:
            del self._waiting[identifier]
        if answer.is_last and answer.error:
            raise EndedStore(answer.error, answer.message)
        if answer.error in _FAILURES:
            raise QueryFailed(answer.error, answer.message)
        if answer.error == "busy":
            raise StoreRestarting(answer.message, 1.0)
        if answer.error:
            raise StoreError(answer.message)
        return answer.value

    # below: keeping the process alive
    async def _spawn(self) -> asyncio.StreamReader:
        ours, theirs = socket.socketpair()
        settings = msgspec.json.encode(self._settings).decode()
        child = str(theirs.fileno())
        command = module_command("ingero.echo.store.process", child, settings)
        try:
            self._process = await start_worker(command, pass_fds=[theirs.fileno()])
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        reader, writer = await asyncio.open_connection(sock=ours, limit=AHEAD_BYTES)
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                ready = await self._receive(reader)
        except (TimeoutError, asyncio.IncompleteReadError):
            writer.close()
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            status = await self._process.wait()
            raise StoreError(
                f"the store process did not open {self._settings.database} (exit status {status}); "
                "its log has the reason"
            ) from None
        if not isinstance(ready, Ready):
            writer.close()
            await self._process.wait()
            raise StoreError(
                ready.message if isinstance(ready, Answer) else f"unexpected {type(ready).__name__}"
            )
        self._writer = writer
        self._up.set()
        self._told = 0
        self._applied(ready.applied_seq)
        log.info("store_ready", extra={"store_pid": ready.pid, "applied_seq": ready.applied_seq})
        return reader

    async def _supervise(self, reader: asyncio.StreamReader) -> None:
        """Read the messages of the store; when it ends, start another."""
        pause_s = FIRST_RESTART_S
        while True:
            with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
                while True:
                    self._dispatch(await self._receive(reader))
                    pause_s = FIRST_RESTART_S
            assert self._process is not None
            status = await self._process.wait()
            self._hang_up()
            if self._stopping:
                return
            self.restarts += 1
            log.warning("store_died", extra={"status": status, "restart": self.restarts})
            reason = f"it ended with status {status}"
            is_told = status == REPLACE_ME
            self._fail_waiting(
                StoreRestarting(reason) if is_told else StoreCrashed(reason, self.restarts)
            )
            while True:
                await asyncio.sleep(pause_s)
                pause_s = min(pause_s * 2, LONGEST_RESTART_S)
                try:
                    reader = await self._spawn()
                    break
                except (StoreError, OSError) as error:  # of the system: no process, no memory
                    self.progress = msgspec.structs.replace(self.progress, problem=str(error))
                    log.error("store_not_started", extra={"reason": str(error)})

    async def _tell(self) -> None:
        """Send the store what is durable: many times a second, but not once per request."""
        while True:
            await asyncio.sleep(TELL_EVERY_S)
            if self._writer is not None and self._durable > self._told:
                # a store that has just ended need not know: the next one is told everything
                with contextlib.suppress(StoreRestarting):
                    self._send(Durable(self._durable, now=bool(self._barriers)))
                    self._told = self._durable

    def _dispatch(self, message: Ready | Progress | Answer) -> None:
        if isinstance(message, Answer):
            future = self._waiting.get(message.id)
            if future is not None and not future.done():
                future.set_result(message)
        elif isinstance(message, Progress):
            self.progress = message
            self._applied(message.applied_seq)
            self._on_progress(message)

    def _applied(self, seq: int) -> None:
        self.applied_seq = max(self.applied_seq, seq)
        for wanted, barrier in self._barriers:
            if wanted <= self.applied_seq and not barrier.done():
                barrier.set_result(None)

    def _hang_up(self) -> None:
        self._up.clear()
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _fail_waiting(self, error: StoreRestarting) -> None:
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(error)

    def _send(self, message: ToStore) -> None:
        """Send a message; raise StoreRestarting if the store has just ended.

        Its socket may be closed before `_supervise` has noticed. uvloop then raises RuntimeError.
        """
        assert self._writer is not None
        try:
            self._writer.write(encode(message))
        except RuntimeError:
            raise StoreRestarting("it has just ended") from None

    async def _receive(self, reader: asyncio.StreamReader) -> Ready | Progress | Answer:
        (size,) = LENGTH.unpack(await reader.readexactly(LENGTH.size))
        message: Ready | Progress | Answer = decode_to_parent(await reader.readexactly(size))
        return message
