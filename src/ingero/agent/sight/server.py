"""The recorder's half: examines processes for the pusher, which has no capabilities.

It describes what it found in words and numbers, and never hands out memory or files.
"""

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from ingero.agent.causes.look import Subject
from ingero.agent.sight.messages import (
    MAX_REQUEST_BYTES,
    Answer,
    CountGpus,
    DescribeWaits,
    FindEngines,
    Look,
    NamePod,
    Request,
)
from ingero.agent.sight.own import OwnSight
from ingero.contract.causes import Signal
from ingero.transport.local.listener import open_listener, peer_credentials

MAX_AT_ONCE: Final = 4
REQUEST_S: Final = 5.0  # within which a request must be complete
log = logging.getLogger(__name__)


class SightServer:
    """Answers on a Unix socket, to processes of the same user only."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._sight = OwnSight()
        self._finding = threading.Lock()
        self._places = threading.Semaphore(MAX_AT_ONCE)
        self._stop = threading.Event()
        self._listener = open_listener(path)
        self._listener.setblocking(True)
        threading.Thread(target=self._accept, name="sight", daemon=True).start()

    def close(self) -> None:
        """Stop answering and remove the socket."""
        self._stop.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # ends the thread that accepts
        self._listener.close()
        with contextlib.suppress(OSError):
            self.path.unlink()

    def _accept(self) -> None:
        while not self._stop.is_set():
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            if self._places.acquire(blocking=False):
                threading.Thread(target=self._serve, args=(peer,), daemon=True).start()
            else:
                peer.close()  # who asks reads with its own rights

    def _serve(self, peer: socket.socket) -> None:
        try:
            with peer:
                peer.settimeout(REQUEST_S)
                if peer_credentials(peer)[1] == os.geteuid():
                    request = msgspec.json.decode(_received(peer), type=Request)
                    peer.sendall(msgspec.json.encode(self._answer(request)))
        except (OSError, msgspec.DecodeError) as error:
            log.debug("sight_request_failed", extra={"why": str(error)})
        # one process that cannot be read must not end the recorder's service
        except Exception:
            log.exception("sight_failed")
        finally:
            self._places.release()

    def _answer(self, request: Request) -> Answer:
        match request:
            case Look(ask, late, peers, gpus, seconds):
                subject = Subject(ask, late, peers, _ToldGpus(gpus))
                return Answer(differences=self._sight.look(subject, self._stop, seconds))
            case FindEngines():
                with self._finding:
                    return Answer(engines=self._sight.find_engines())
            case DescribeWaits(pid):
                return Answer(text=self._sight.describe_waits(pid))
            case CountGpus(pid):
                return Answer(count=self._sight.count_gpus(pid))
            case NamePod(pid):
                return Answer(text=self._sight.name_pod(pid))


class _ToldGpus:
    """The signals of GPUs, as the part that pushes read them."""

    def __init__(self, signals: Mapping[int, dict[Signal, float]]) -> None:
        self._signals = signals

    def read(self, pid: int, local_rank: int | None, now_s: float) -> dict[Signal, float]:
        """Return what was told about the GPU of a process."""
        return self._signals.get(pid, {})


def _received(peer: socket.socket) -> bytes:
    """Return one line; raise OSError where it does not end."""
    received = bytearray()
    while not received.endswith(b"\n"):
        chunk = peer.recv(1 << 16)
        if not chunk or len(received) + len(chunk) > MAX_REQUEST_BYTES:
            raise OSError("no complete request")
        received += chunk
    return bytes(received)
