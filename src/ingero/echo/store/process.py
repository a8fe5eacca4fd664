"""The store process: the only one that opens the database, under an address-space limit.

There are three kinds of threads. The main thread reads messages, one loader (niced, so that
acknowledgements come first) is the only writer, and a few readers answer queries. Running out of
memory ends at most this process; its parent starts another, which continues from the applied
sequence.
"""

import logging
import os
import resource
import signal
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import msgspec

from ingero.children.lifetime import end_with_parent
from ingero.echo.store.api import QueryResult
from ingero.echo.store.memory import keep_memory_together, leave_out_pyarrow
from ingero.echo.store.turns import READERS
from ingero.echo.store.wire import (
    LENGTH,
    RAN_OUT,
    REPLACE_ME,
    Answer,
    Ask,
    Durable,
    Ready,
    Stop,
    StoreSettings,
    decode_to_store,
    encode,
)
from ingero.errors import IngeroError

if TYPE_CHECKING:
    from ingero.echo.store.loader import Loader

log = logging.getLogger(__name__)

OWN_READERS: Final = 2  # for Echo itself: statistics, audit rows and backups wait for no query
MAX_WAITING_QUERIES: Final = 32
OPEN_RETRY_S: Final = 10.0  # the previous process may still be exiting
# an interrupt takes effect between steps; a step that takes longer than this ends the process
OVERRUN_S: Final = 5.0
WATCH_S: Final = 0.5
# share of the address space: if a query leaves less, the next load could fail
LITTLE_LEFT: Final = 0.15


def main(fd: int, settings: StoreSettings) -> int:
    """Serve one parent until it exits or sends Stop; return the exit status."""
    end_with_parent(signal.SIGKILL)
    keep_memory_together()
    leave_out_pyarrow()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides when to stop
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.umask(0o077)  # only the owner may read the database
    limit = settings.address_space_bytes
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    from ingero.echo.store.loader import Loader  # noqa: PLC0415 - DuckDB must come after the limit

    channel = Channel(socket.socket(fileno=fd))
    loader = Loader(settings, channel.send)
    try:
        applied_seq = loader.open(OPEN_RETRY_S)
    except IngeroError as error:
        channel.send(Answer(0, error="not_opened", message=str(error)))
        return 1
    channel.send(Ready(applied_seq, os.getpid()))
    loader.start()
    return _Service(channel, loader).run()


class Channel:
    """Complete messages over the socket; any thread may send."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._file = connection.makefile("rb")
        self._lock = threading.Lock()

    def send(self, message: Any) -> None:
        data = encode(message)
        with self._lock:
            self._connection.sendall(data)

    def receive(self) -> Durable | Ask | Stop | None:
        """Return the next message, or None when the parent has exited."""
        head = self._file.read(LENGTH.size)
        if len(head) < LENGTH.size:
            return None
        message: Durable | Ask | Stop = decode_to_store(self._file.read(LENGTH.unpack(head)[0]))
        return message


class _Service:
    """Passes messages to the loader and to the readers."""

    def __init__(self, channel: Channel, loader: "Loader") -> None:
        self._channel = channel
        self._loader = loader
        self._readers = ThreadPoolExecutor(READERS + OWN_READERS, thread_name_prefix="reader")
        self._waiting = threading.Semaphore(MAX_WAITING_QUERIES)
        # user SQL, and the time when it exceeds its limit
        self._running: dict[int, tuple[Ask, float]] = {}
        self._statements: set[int] = set()  # user SQL whose answer is not sent yet
        # taken by the question that exhausted the memory, and never released
        self._leaving = threading.Lock()

    def run(self) -> int:
        threading.Thread(target=self._watch, name="watch", daemon=True).start()
        while True:
            message = self._channel.receive()
            if message is None:
                # the parent has exited; the next opening undoes an unfinished transaction
                os._exit(0)
            if isinstance(message, Stop):
                self._readers.shutdown(cancel_futures=True)
                return self._loader.stop()
            if isinstance(message, Durable):
                self._loader.durable(message.seq, message.now)
            elif not self._waiting.acquire(blocking=False):
                self._channel.send(
                    Answer(
                        message.id, error="busy", message="too many queries are waiting; try again"
                    )
                )
            else:
                self._readers.submit(self._answer, message)

    def _answer(self, ask: Ask) -> None:
        before = self._loader.address_space_left()
        if ask.what == "sql":
            self._statements.add(ask.id)
            self._running[ask.id] = (
                ask,
                time.monotonic() + float(ask.args["limits"]["seconds"]) + OVERRUN_S,
            )
        try:
            answer = self._loader.answer(ask)
        except Exception as error:  # the boundary of a question: whoever asked receives the error
            log.exception("question_failed what=%s", ask.what)
            answer = Answer(ask.id, error="internal", message=f"{type(error).__name__}: {error}")
        finally:
            self._running.pop(ask.id, None)
            self._waiting.release()
        after = self._loader.address_space_left()
        is_swollen = ask.what == "sql" and after < LITTLE_LEFT and before - after > LITTLE_LEFT
        is_fatal = is_swollen or answer.error in ("out_of_memory", "store_failed")
        if is_fatal and self._leaving.acquire(blocking=False):
            if ask.what != "sql" and self._statements:  # Echo's own question is the victim
                log.warning("memory_taken what=%s", ask.what)
                os._exit(RAN_OUT)
            self._channel.send(_last(answer))
            time.sleep(0.05)  # let the answer be sent
            os._exit(REPLACE_ME)
        if answer.error and self._leaving.locked():  # another question used up the memory
            answer = Answer(ask.id, error="busy", message="it is being replaced")
        self._channel.send(answer)
        self._statements.discard(ask.id)

    def _watch(self) -> None:
        """End this process when user SQL overruns.

        Inside a single function call no interrupt takes effect, and it may run for hours.
        """
        while True:
            time.sleep(WATCH_S)
            late = [ask for ask, due_s in list(self._running.values()) if time.monotonic() > due_s]
            if late and self._leaving.acquire(blocking=False):
                log.warning("queries_overran count=%d", len(late))
                for ask in late:
                    message = (
                        "the query ran into its time limit and could not be stopped; narrow it in "
                        "time or rows"
                    )
                    self._channel.send(
                        Answer(ask.id, error="timeout", message=message, is_last=ask is late[0])
                    )
                time.sleep(0.05)  # let the answers be sent
                os._exit(REPLACE_ME)


def _last(answer: Answer) -> Answer:
    """Return the answer of the question because of which this process ends."""
    if isinstance(answer.value, QueryResult):
        answer = msgspec.structs.replace(answer, value=replace(answer.value, ended_store=True))
    return msgspec.structs.replace(answer, is_last=True)


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(name)s %(message)s")
    try:
        status = main(int(sys.argv[1]), msgspec.json.decode(sys.argv[2], type=StoreSettings))
    except BrokenPipeError:  # the parent exited while the database was being opened
        status = 0
    logging.shutdown()
    os._exit(status)  # connections of readers need no end, and without PostgreSQL have none
