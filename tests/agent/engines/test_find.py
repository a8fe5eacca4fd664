"""Engines whose command line says nothing are found by the GPU library that they map."""

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ingero.agent.engines.find import Candidate, EngineFinder

# Like CUDA: 4 GiB of address space and the driver's library; the port is in the command line.
SERVER = """
import mmap, socket, sys
space = mmap.mmap(-1, 4 << 30, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=mmap.PROT_READ)
library = open(sys.argv[1], "rb")
mapped = mmap.mmap(library.fileno(), 0, prot=mmap.PROT_READ)
listener = socket.socket(fileno=int(sys.argv[2]))
print("ready", flush=True)
sys.stdin.read()
"""


@contextmanager
def server(library: Path) -> Iterator[int]:
    library.write_bytes(b"\0" * 4096)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port, handle = listener.getsockname()[1], listener.fileno()
        command = [sys.executable, "-c", SERVER, str(library), str(handle), "--port", str(port)]
        process = subprocess.Popen(
            command, pass_fds=(handle,), stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
    with process:
        assert process.stdout is not None and process.stdin is not None
        assert process.stdout.readline() == b"ready\n"
        yield process.pid
        process.stdin.close()


def found(pid: int) -> Candidate | None:
    return next((each for each in EngineFinder().find() if each.pid == pid), None)


@pytest.mark.parametrize(("library", "is_found"), [("libcuda.so.1", True), ("libother.so", False)])
def test_f165_a_process_that_maps_the_gpu_library_and_listens_may_be_an_engine(
    tmp_path: Path, library: str, is_found: bool
) -> None:
    with server(tmp_path / library) as pid:
        candidate = found(pid)
    assert (candidate is not None) == is_found
    if candidate is not None:
        assert candidate.uses_gpu
        assert [each.port for each in candidate.ports] == [candidate.line.port]
