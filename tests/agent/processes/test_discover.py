"""F129: libraries are found by what a process maps, wherever and however changed the file is."""

import os
import subprocess
import sys
from types import SimpleNamespace

from ingero.agent.processes.discover import (
    Library,
    find_libraries,
    mapped_libraries,
    returns_are_safe,
    start_time,
)

VENV = "/home/u/.venv/lib/python3.12/site-packages/nvidia/cuda_runtime/lib/libcudart.so.12"
MAPS = f"""\
55d0-55d1 r-xp 00000000 fe:00 10 /usr/bin/python3.12
7f00-7f01 r--p 00000000 fe:00 11 {VENV}
7f01-7f02 r-xp 00001000 fe:00 11 {VENV}
7f10-7f11 r-xp 00000000 fe:00 12 /opt/other/libcudart-8f3a1b2c.so.12.4.127
7f20-7f21 r-xp 00000000 fe:00 13 /usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04
7f30-7f31 r-xp 00000000 fe:00 14 /x y/libnccl.so.2 (deleted)
7f40-7f41 r-xp 00000000 fe:00 15 /v/torch/lib/libtorch_cuda.so
7f50-7f51 rw-p 00000000 00:00 0
7f60-7f61 r-xp 00000000 fe:00 16 /v/libcudart_not.txt
7fff-7fff r-xp 00000000 00:00 0 [vdso]
"""


def test_every_copy_is_found_once_with_spaces_and_deleted_files() -> None:
    found = find_libraries(77, MAPS)
    assert [(one.library, one.path, one.inode) for one in found] == [
        (Library.CUDART, VENV, 11),
        (Library.CUDART, "/opt/other/libcudart-8f3a1b2c.so.12.4.127", 12),
        (Library.CUDA, "/usr/lib/x86_64-linux-gnu/libcuda.so.580.159.04", 13),
        (Library.NCCL, "/x y/libnccl.so.2", 14),
    ]
    assert found[0].file == "/proc/77/map_files/7f00-7f01"


def test_nccl_inside_torch_counts_where_there_is_no_libnccl() -> None:
    text = "\n".join(line for line in MAPS.splitlines() if "libnccl" not in line)
    assert [one.path for one in find_libraries(77, text) if one.library is Library.NCCL] == [
        "/v/torch/lib/libtorch_cuda.so"
    ]


def test_process_without_cuda_has_nothing_and_a_dead_one_is_no_error() -> None:
    plain = subprocess.Popen(["sleep", "10"])
    assert mapped_libraries(plain.pid) == []
    plain.kill()
    plain.wait()
    assert mapped_libraries(2**22 + 1) == []
    assert start_time(2**22 + 1) is None
    assert isinstance(start_time(os.getpid()), int)


def test_return_probes_are_avoided_only_under_seccomp_on_the_kernels_that_kill(monkeypatch) -> None:
    def release(text: str) -> None:
        monkeypatch.setattr("os.uname", lambda: SimpleNamespace(release=text))

    filtered = subprocess.Popen(
        [sys.executable, "-c", FILTERED], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert filtered.stdout and filtered.stdout.readline() == "ready\n"
        for text, safe in (
            ("6.12.3-azure", False),
            ("6.13.0", False),
            ("6.18.4", True),
            ("6.1.0", True),
            ("5.15.0", True),
        ):
            release(text)
            assert returns_are_safe(filtered.pid) is safe, text
            assert returns_are_safe(os.getpid()), "no filter, no danger"
    finally:
        filtered.kill()
        filtered.communicate()


FILTERED = """
import ctypes, struct, sys
libc = ctypes.CDLL(None)
allow = ctypes.create_string_buffer(struct.pack("HBBI", 6, 0, 0, 0x7FFF0000))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", 1, ctypes.addressof(allow)))
libc.prctl(38, 1, 0, 0, 0)
assert libc.prctl(22, 2, program, 0, 0) == 0
print("ready", flush=True)
sys.stdin.readline()
"""
