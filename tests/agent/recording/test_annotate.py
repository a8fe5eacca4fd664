"""The annotation socket: who may say what about whom."""

import json
import os
import shutil
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.waiting import until

from ingero.agent.processes.discover import parent_of, start_time
from ingero.agent.recording.annotate import AnnotationServer, check_owner, send_annotation
from ingero.agent.recording.annotation_limits import MAX_USER_CONNECTIONS
from ingero.cli.dispatch import run
from ingero.contract.annotations import Annotation
from ingero.errors import AuthError, IngeroError, MalformedInput

NOW = 1_700_000_000_000_000_000


@pytest.fixture
def server(tmp_path: Path) -> Iterator[AnnotationServer]:
    one = AnnotationServer(tmp_path / "run" / "annotate.sock")
    yield one
    one.close()
    assert not one.path.exists()


def connect(server: AnnotationServer) -> socket.socket:
    peer = socket.socket(socket.AF_UNIX)
    peer.connect(str(server.path))
    return peer


def test_lines_become_rows_with_their_writer(server: AnnotationServer) -> None:
    with connect(server) as peer:
        peer.sendall(
            b'{"labels":{"step":"1"}}\n{"labels":{"step":"2"},"ts":5,"pid":%d}\n{"lab' % os.getpid()
        )
        rows = server.poll(NOW)
        assert rows == [
            (NOW, '{"step":"1"}', 0, 0, 0, 0, os.getuid(), os.getgid(), os.getpid()),
            (
                5,
                '{"step":"2"}',
                os.getpid(),
                start_time(os.getpid()),
                0,
                0,
                os.getuid(),
                os.getgid(),
                os.getpid(),
            ),
        ]
        peer.sendall(b'els":{"epoch":"3"},"span_start":1,"span_end":2}')
        peer.shutdown(socket.SHUT_WR)
        while server._connections:
            rows += server.poll(NOW)
    assert [row[1] for row in rows] == ['{"step":"1"}', '{"step":"2"}', '{"epoch":"3"}']
    assert (server.accepted, server.rejected.total()) == (3, 0)


def test_a_bad_line_is_refused_and_the_connection_goes_on(server: AnnotationServer) -> None:
    with connect(server) as peer:
        peer.sendall(b'nonsense\n{"labels":{"step":"1"}}\n{"labels":{}}\n')
        assert len(server.poll(NOW)) == 1
        assert server.rejected == {"malformed": 2}
        assert b"not an annotation" in peer.recv(4096)
        peer.sendall(b'{"labels":{"step":"2"}}\n')
        assert len(server.poll(NOW)) == 1


def test_an_endless_line_costs_no_memory(server: AnnotationServer) -> None:
    with connect(server) as peer:
        for _ in range(40):
            peer.sendall(b"x" * 8192)
            server.poll(NOW)
            assert all(len(connection.buffer) <= 16384 for connection in server._connections)
        peer.sendall(b'\n{"labels":{"step":"1"}}\n')
        assert len(server.poll(NOW)) == 1
    assert server.rejected == {"too_long": 1}


def test_the_end_of_a_line_that_is_too_long_is_no_line(server: AnnotationServer) -> None:
    with connect(server) as peer:
        peer.sendall(b"x" * 20_000)
        server.poll(NOW)
        peer.sendall(b'{"labels":{"step":"1"}}')
        peer.shutdown(socket.SHUT_WR)
        while server._connections:
            assert server.poll(NOW) == []
    assert server.rejected == {"too_long": 1}


INSIDE = """
import os, socket, subprocess, sys
def tell(pid, step):
    peer = socket.socket(socket.AF_UNIX)
    peer.connect(sys.argv[1])
    peer.sendall(b'{"labels":{"step":"%d"},"pid":%d}' % (step, pid))
    peer.shutdown(socket.SHUT_WR)
    return peer.recv(4096)
if len(sys.argv) > 2:
    tell(os.getppid(), 2)
else:
    tell(os.getpid(), 1)
    subprocess.run([sys.executable, "-c", sys.orig_argv[2], sys.argv[1], "child"], check=True)
    print(tell(os.getpid() + 100, 3).decode(), end="")
"""


def test_a_process_in_a_container_annotates_itself_by_its_own_pid(
    server: AnnotationServer,
) -> None:
    """Under that number the host has another process, or none."""
    if shutil.which("unshare") is None or os.geteuid():
        pytest.skip("needs unshare and root")
    separate = ["unshare", "--pid", "--fork", "--kill-child"]
    if subprocess.run([*separate, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no namespace of processes can be made here")
    command = [*separate, sys.executable, "-c", INSIDE, str(server.path)]
    found: list[tuple[object, int | None]] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:

        def is_over() -> bool:
            found.extend((row[1], parent_of(int(str(row[2])))) for row in server.poll(NOW))
            return process.poll() is not None

        until(is_over)
        assert (
            process.stdout
            and "neither the writer nor one of its ancestors" in process.stdout.read()
        )
    assert found == [('{"step":"1"}', process.pid), ('{"step":"2"}', process.pid)]


def test_a_thousand_lines_a_second(server: AnnotationServer) -> None:
    with connect(server) as peer:
        peer.sendall(b'{"labels":{"s":"1"}}\n' * 1200)
        rows = server.poll(NOW)
        assert len(rows) == 1000
        assert server.rejected == {"rate": 200}
        peer.sendall(b'{"labels":{"s":"1"}}\n')
        assert len(server.poll(NOW + 1_000_000_000)) == 1


def test_connections_are_bounded(server: AnnotationServer) -> None:
    peers = []
    for _ in range(MAX_USER_CONNECTIONS + 3):
        peers.append(connect(server))
        server.poll(NOW)
    assert len(server._connections) == MAX_USER_CONNECTIONS
    assert server.rejected == {"connections": 3}
    for peer in peers:
        peer.close()
    server.poll(NOW)
    assert server._connections == []


def test_only_the_owner_may_annotate_a_process() -> None:
    mine = Annotation(labels={"k": "v"}, pid=os.getpid())
    assert check_owner(mine, os.getuid()) == start_time(os.getpid())
    with pytest.raises(AuthError, match="belongs to user"):
        check_owner(mine, os.getuid() + 1)
    with pytest.raises(AuthError, match="does not exist"):
        check_owner(Annotation(labels={"k": "v"}, pid=2**22 - 1), os.getuid())
    with pytest.raises(AuthError, match="reused"):
        check_owner(Annotation(labels={"k": "v"}, pid=os.getpid(), start_time=1), os.getuid())
    assert check_owner(mine, 0), "root may"


def test_socket_and_folder_are_private(server: AnnotationServer) -> None:
    assert stat.S_IMODE(server.path.stat().st_mode) == 0o700
    assert stat.S_IMODE(server.path.parent.stat().st_mode) == 0o700
    with pytest.raises(IngeroError, match="another process listens"):
        AnnotationServer(server.path)


def test_the_command_reaches_the_recorder(
    server: AnnotationServer, capsys: pytest.CaptureFixture[str]
) -> None:
    rows: list[object] = []
    done = threading.Event()

    def serve() -> None:
        while not done.is_set():
            rows.extend(server.poll(NOW))
            time.sleep(0.002)

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        assert run(["annotate", "step=7", "phase=forward", "--socket", str(server.path)]) == 0
        assert run(["annotate", "step=7", "--pid", "4194303", "--socket", str(server.path)]) == 1
        with pytest.raises(MalformedInput, match="labels"):
            send_annotation(server.path, b'{"labels":{}}\n')
    finally:
        done.set()
        thread.join()
    assert [json.loads(row[1]) for row in rows] == [{"step": "7", "phase": "forward"}]  # type: ignore[index]
    assert "process 4194303 does not exist" in capsys.readouterr().err


def test_wrong_labels_and_absent_recorders_are_sentences(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["annotate", "step", "--socket", str(tmp_path / "x")]) == 1
    assert run(["annotate", "a b=1", "--socket", str(tmp_path / "x")]) == 1
    assert run(["annotate", "step=1", "--socket", str(tmp_path / "x")]) == 1
    errors = capsys.readouterr().err
    assert "not KEY=VALUE" in errors
    assert "the key 'a b'" in errors
    assert "start `ingero trace --annotate`" in errors
