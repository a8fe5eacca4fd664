"""Reads Fleet's live stream in a thread, and connects again by itself."""

import threading
from collections.abc import Callable
from typing import Final, Protocol
from urllib.parse import urlencode

import msgspec

from ingero.contract.api_paths import FLEET_LIVE
from ingero.contract.live import LiveMessage, LiveTick, decode_message
from ingero.contract.names import CLUSTER_QUERY, JOB_QUERY
from ingero.errors import AuthError, IngeroError
from ingero.transport.fleet_client import FleetClient, FleetStream

FIRST_PAUSE_S: Final = 0.5
LONGEST_PAUSE_S: Final = 4.0
Take = Callable[[list[LiveMessage]], None]
Fail = Callable[[IngeroError], None]


class Reader(Protocol):
    """Where `ingero top` gets its messages from."""

    def start(self, take: Take, fail: Fail) -> None: ...

    def ask(self, cluster: str | None, job: str | None) -> None: ...

    def close(self) -> None: ...


class StreamReader:
    """One stream at a time: another question ends it, and the next one begins with a snapshot."""

    def __init__(self, client: FleetClient, cluster: str | None) -> None:
        self._client, self._query = client, _query(cluster, None)
        self._stream: FleetStream | None = None
        self._is_over = threading.Event()
        self._wake = threading.Event()

    def start(self, take: Take, fail: Fail) -> None:
        """Begin to read; `take` gets the messages of a second, `fail` why there are none."""
        threading.Thread(target=self._run, args=(take, fail), daemon=True).start()

    def ask(self, cluster: str | None, job: str | None) -> None:
        """Read about this cluster and job from now on."""
        query = _query(cluster, job)
        if query != self._query:
            self._query = query
            self._end_stream()

    def close(self) -> None:
        """End the thread."""
        self._is_over.set()
        self._end_stream()

    def _end_stream(self) -> None:
        self._wake.set()
        stream = self._stream
        if stream is not None:
            stream.close()

    def _run(self, take: Take, fail: Fail) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._is_over.is_set():
            query = self._query
            self._wake.clear()
            try:
                self._stream = self._client.stream(f"{FLEET_LIVE}{query}")
                pause_s = FIRST_PAUSE_S
                self._read(self._stream, query, take)
            except AuthError as error:
                fail(error)
                return
            except IngeroError as error:
                if query == self._query and not self._is_over.is_set():
                    fail(error)
            if query == self._query:
                self._wake.wait(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _read(self, stream: FleetStream, query: str, take: Take) -> None:
        waiting: list[LiveMessage] = []
        for line in stream:
            if query != self._query or self._is_over.is_set():
                break
            try:
                waiting.append(decode_message(line))
            except msgspec.DecodeError:
                continue  # a message of a later version
            if isinstance(waiting[-1], LiveTick):
                take(waiting)
                waiting = []
        stream.close()


def _query(cluster: str | None, job: str | None) -> str:
    asked = {CLUSTER_QUERY: cluster, JOB_QUERY: job}
    text = urlencode({name: value for name, value in asked.items() if value is not None})
    return f"?{text}" if text else ""
