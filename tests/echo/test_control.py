"""The operator's socket: what listens beside somebody else's database may answer anything."""

import socket
import threading
from pathlib import Path

import pytest
from tests.support.waiting import PATIENCE_S

from ingero.echo import control
from ingero.echo.control import ask_running, control_path
from ingero.errors import StoreError


@pytest.mark.parametrize(
    "answer",
    [
        b"[" * 100_000 + b"\n",
        b"\xff\n",
        b"5\n",
        b"[]\n",
        b"\n",
        b'{"error": "' + b"x" * 5000 + b'"}\n',
    ],
)
def test_any_answer_gives_a_sentence(
    answer: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "MAX_ANSWER_BYTES", 4096)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(control_path(tmp_path / "echo.db")))
        listener.listen()
        stranger = threading.Thread(target=_answer_once, args=(listener, answer))
        stranger.start()
        with pytest.raises(StoreError, match="does not answer like an Echo"):
            ask_running(tmp_path / "echo.db", {"do": "backup"}, PATIENCE_S)
        stranger.join()


def _answer_once(listener: socket.socket, answer: bytes) -> None:
    peer, _ = listener.accept()
    with peer:
        peer.recv(4096)
        try:
            peer.sendall(answer)
        except ConnectionError:
            return  # it was not read to the end
