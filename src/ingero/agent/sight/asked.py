"""The pusher's half: asks the recorder, or uses its own rights if no recorder answers."""

import logging
import socket
import threading
import time
from pathlib import Path
from typing import Final

import msgspec

from ingero.agent.causes.look import LONGEST, MAX_PEERS, Subject
from ingero.agent.engines.sight import SeenEngines
from ingero.agent.sight.messages import (
    MAX_REPLY_BYTES,
    Answer,
    CountGpus,
    DescribeWaits,
    FindEngines,
    Look,
    NamePod,
    Request,
)
from ingero.agent.sight.own import OwnSight
from ingero.core.causes.ranking import Difference
from ingero.errors import Unavailable

ANSWER_S: Final = 30.0  # beside the time of a look
log = logging.getLogger(__name__)


class AskedSight:
    """Examines processes through the recorder at `path`, which may be absent."""

    def __init__(self, path: Path) -> None:
        self.problem = ""
        self._path, self._own = path, OwnSight()

    def look(
        self, subject: Subject, stop: threading.Event, seconds: float
    ) -> list[Difference] | None:
        """Return what sets a rank apart; None when it is gone."""
        late, peers, now_s = subject.late, subject.peers[:MAX_PEERS], time.monotonic()
        told = {
            rank.pid: dict(subject.gpus.read(rank.pid, rank.local_rank, now_s))
            for rank in (late, *peers)
        }
        try:
            request = Look(subject.ask, late, list(peers), told, seconds)
            return self._ask(request, ANSWER_S + LONGEST * seconds).differences
        except Unavailable:
            return self._own.look(subject, stop, seconds)

    def find_engines(self) -> SeenEngines:
        """Return the processes that may be engines."""
        try:
            return self._ask(FindEngines()).engines
        except Unavailable:
            return self._own.find_engines()

    def describe_waits(self, pid: int) -> str:
        """Return where the workers of an engine are."""
        try:
            return self._ask(DescribeWaits(pid)).text
        except Unavailable:
            return self._own.describe_waits(pid)

    def count_gpus(self, pid: int) -> int:
        """Return how many processes of an engine use a GPU."""
        try:
            return self._ask(CountGpus(pid)).count
        except Unavailable:
            return self._own.count_gpus(pid)

    def name_pod(self, pid: int) -> str:
        """Return the pod that a process runs in; empty where it is not known."""
        try:
            return self._ask(NamePod(pid)).text
        except Unavailable:
            return self._own.name_pod(pid)

    def _ask(self, request: Request, timeout_s: float = ANSWER_S) -> Answer:
        """Return the recorder's answer; raise Unavailable where it gives none."""
        received = bytearray()
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as recorder:
                recorder.settimeout(timeout_s)
                recorder.connect(str(self._path))
                recorder.sendall(msgspec.json.encode(request) + b"\n")
                while len(received) <= MAX_REPLY_BYTES and (chunk := recorder.recv(1 << 16)):
                    received += chunk
            answer = msgspec.json.decode(received, type=Answer)
        except (OSError, msgspec.DecodeError) as error:
            self.problem = (
                "causes and engines of other users are not seen: "
                f"the recorder does not answer ({error})"
            )
            raise Unavailable(self.problem) from None
        self.problem = ""
        return answer
