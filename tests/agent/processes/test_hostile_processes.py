"""Processes that give their files, mappings and variables names meant to stop their reader."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ingero.agent.processes.budget import UserBudget
from ingero.agent.processes.discover import (
    MAX_LIBRARIES,
    Library,
    MappedLibrary,
    find_libraries,
    mapped_libraries,
    returns_are_safe,
    user_of,
)
from ingero.agent.processes.flight_recorder import (
    DumpOutcome,
    DumpTarget,
    find_targets,
    request_dump,
    target_of,
)
from ingero.agent.processes.info import ProcessInfo, parse_environ, pod_of, read_process
from ingero.agent.processes.maps import find_regions, openable, parse_regions
from ingero.agent.processes.namespaces import find_ancestor
from ingero.agent.stacks.line_tables import line_of, line_of_310
from ingero.agent.stacks.symbols import Symbolizer
from ingero.errors import ForeignFile
from ingero.files import open_regular

MAP_ALL = """
import mmap, os, sys
maps = [mmap.mmap(os.open(name, os.O_RDONLY), 4096, prot=mmap.PROT_READ) for name in sys.argv[1:]]
print("ready", flush=True)
sys.stdin.readline()
"""
LINE_ENDS = ("\x0b", "\x0c", "\x1c", "\x1d", "\x1e", "\x85", "\u2028", "\u2029", "\r")


@pytest.fixture
def mapping() -> Iterator[object]:
    started: list[subprocess.Popen[str]] = []

    def start(*paths: Path) -> int:
        command = [sys.executable, "-c", MAP_ALL, *map(str, paths)]
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        started.append(process)
        assert process.stdout and process.stdout.readline()
        return process.pid

    yield start
    for process in started:
        process.kill()
        process.communicate()


def test_name_with_line_ends_makes_no_mapping_up(tmp_path: Path, mapping) -> None:
    """Each name ends a line for Unicode and goes on like a line of the kernel, or almost."""
    forged = "0-ffffffffffff r-xp 00000000 fe:00 7 libcuda.so"
    names = [f"x{end}{forged}" for end in LINE_ENDS] + ["y\x0bzz-zz r-xp q q q libcuda.so", "z\nw"]
    paths = [tmp_path / name for name in names]
    for path in paths:
        path.write_bytes(bytes(4096))
    pid = mapping(*paths)
    assert mapped_libraries(pid) == []
    found = {region.path for region in find_regions(pid)}
    assert {str(path).replace("\n", "\\012") for path in paths} <= found
    assert Symbolizer().resolve(pid, [0x10])[0].file is None


@given(st.lists(st.text(alphabet=st.characters(codec="utf-8"), max_size=60), max_size=5))
def test_any_lines_are_mappings_or_nothing(lines: list[str]) -> None:
    for prefix in (
        "",
        "7f00-7f01 r-xp 00000000 fe:00 12 /",
        "7f0-7f1 r-xp 0 fe:0 9 /libcuda.so",
    ):
        text = "\n".join(prefix + line for line in lines)
        for region in parse_regions(1, text.split("\n")):
            assert region.path.startswith("/") and region.start >= 0
        find_libraries(1, text)


def test_one_process_has_a_number_of_libraries() -> None:
    lines = [f"{n:x}-{n + 1:x} r-xp 0 fe:00 {n} /l/libcudart.so.{n}" for n in range(1, 500)]
    assert len(find_libraries(1, "\n".join(lines))) == MAX_LIBRARIES


def test_pipe_with_the_number_of_a_mapped_file_is_never_opened(tmp_path: Path) -> None:
    """The mapped file is gone; at its path is a pipe whose inode has the same number."""
    pipe, other = tmp_path / "libcudart.so.12", tmp_path / "libnccl.so.2"
    os.mkfifo(pipe)
    other.write_bytes(b"x")
    gone = "/proc/self/map_files/0-0"
    own = pipe.stat()
    device = f"{os.major(own.st_dev):02x}:{os.minor(own.st_dev):02x}"
    here = os.getpid()
    for where in (device, "fe:99"):
        library = MappedLibrary(Library.CUDART, str(pipe), gone, where, own.st_ino)
        assert openable(here, library) is None
    same = MappedLibrary(Library.NCCL, str(other), gone, device, other.stat().st_ino)
    assert openable(here, same) == f"/proc/{here}/root{other}"
    elsewhere = MappedLibrary(Library.NCCL, str(other), gone, "fe:99", other.stat().st_ino)
    assert openable(here, elsewhere) is None


def test_only_regular_files_are_opened_and_none_is_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to("file")
    for path in (tmp_path / "pipe", tmp_path, Path("/dev/zero"), tmp_path / "link"):
        with pytest.raises(ForeignFile, match="not a regular file"):
            open_regular(str(path))
    descriptor, status = open_regular(str(tmp_path / "link"), follow=True)
    os.close(descriptor)
    assert status.st_size == 1


@pytest.mark.parametrize("rank", ["²", "٣", "9" * 5000, "-1", "1_0", ""])
def test_rank_that_is_no_number_names_no_pipe(rank: str) -> None:
    assert target_of(1, {"TORCH_NCCL_DEBUG_INFO_PIPE_FILE": "/p", "RANK": rank}, Path("/")) is None


def test_variables_of_any_content_are_survived(tmp_path: Path) -> None:
    proc = tmp_path / "77"
    proc.mkdir()
    long_pipe = b"TORCH_NCCL_DEBUG_INFO_PIPE_FILE=/" + b"x" * 5000 + b"\0RANK=1\0"
    (proc / "environ").write_bytes(long_pipe + b"INGERO_JOB_ID=" + b"j" * 100_000 + b"\0\xff\xfe")
    assert find_targets([77], tmp_path) == []
    found = read_process(77, tmp_path)
    assert (found.job, found.rank) == (None, 1), "an identity is never cut"
    (proc / "environ").write_bytes(b"INGERO_JOB_ID=a\x1b[2J")
    assert read_process(77, tmp_path).job is None


@given(st.binary(max_size=300))
def test_any_environment_is_parsed(block: bytes) -> None:
    parse_environ(block)
    parse_environ(b"RANK=" + block)


@pytest.mark.skipif(os.geteuid() != 0, reason="another user's process needs root")
@pytest.mark.root
async def test_process_cannot_have_root_read_or_write_what_it_could_not(tmp_path: Path) -> None:
    with subprocess.Popen(["sleep", "60"], user=12345, group=12345) as process:
        os.mkfifo(tmp_path / "p1.pipe")
        reader = os.open(tmp_path / "p1.pipe", os.O_RDONLY | os.O_NONBLOCK)
        target = DumpTarget(process.pid, 1, tmp_path / "p1.pipe", tmp_path / "dump1")
        reply = await request_dump(target, 0.1)
        assert reply.outcome is DumpOutcome.REFUSED
        assert os.read(reader, 10) == b""
        os.close(reader)
        assert user_of(process.pid) == 12345
        process.kill()


def test_budget_is_shared_by_nobody_and_paid_back() -> None:
    budget = UserBudget(per_s=1.0, burst=2.0, users=2)
    budget.spend(1, 5.0, 0.0)
    assert [budget.allows(1, 0.0), budget.allows(2, 0.0)] == [False, False], "all had four"
    assert [budget.allows(1, 2.0), budget.allows(2, 2.0)] == [False, True]
    assert budget.allows(1, 3.5)
    assert budget.refusals == 3


def test_budget_forgets_users_it_owes_nothing(monkeypatch) -> None:
    monkeypatch.setattr("ingero.agent.processes.budget._MAX_USERS", 8)
    budget = UserBudget(1.0, 1.0)
    for uid in range(100):
        budget.spend(uid, 0.1, float(uid))
    assert len(budget._left) <= 9


@settings(max_examples=300)
@given(table=st.binary(max_size=80), first=st.integers(0, 1 << 24), at=st.integers(-(2**40), 2**40))
def test_any_line_table_gives_a_line_or_none(table: bytes, first: int, at: int) -> None:
    for read in (line_of, line_of_310):
        try:
            assert read(table, first, at) is None or isinstance(read(table, first, at), int)
        except IndexError:
            assert read is line_of, "the caller takes this for an unreadable table"


def test_process_that_never_was_is_empty() -> None:
    assert read_process(2**22 + 3) == ProcessInfo(2**22 + 3, 0, "")


@pytest.mark.parametrize(
    ("environ", "pod"),
    [
        ({}, ""),
        ({"HOSTNAME": "laptop"}, ""),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": "train-7f9-x2x"}, "train-7f9-x2x"),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1", "HOSTNAME": os.uname().nodename}, ""),
        ({"POD_NAME": "worker-0", "HOSTNAME": "laptop"}, "worker-0"),
        ({"POD_NAME": 'a"b\n', "MY_POD_NAME": "worker-1"}, "worker-1"),
        ({"POD_NAME": "x" * 300}, ""),
    ],
)
def test_a_pod_is_named_by_its_process(tmp_path: Path, environ: dict[str, str], pod: str) -> None:
    """The host name of a pod that shares its node's network is that of the node."""
    (tmp_path / "7").mkdir()
    block = b"".join(f"{name}={value}\0".encode() for name, value in environ.items())
    (tmp_path / "7" / "environ").write_bytes(block)
    assert pod_of(7, tmp_path) == pod
    assert pod_of(8, tmp_path) == ""


def test_a_name_forges_no_line_of_the_status(monkeypatch: pytest.MonkeyPatch) -> None:
    code = """
import pathlib, sys
for name in sys.stdin:
    pathlib.Path("/proc/self/comm").write_text(eval(name), newline="")
    print(flush=True)
"""
    monkeypatch.setattr(os, "uname", lambda: SimpleNamespace(release="6.12.0"))
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for name in ("\rNSpid:\t77", "\rSeccomp:\t2"):
            process.stdin.write(f"{name!r}\n")
            process.stdin.flush()
            process.stdout.readline()
            assert find_ancestor(process.pid, 77) is None
            assert find_ancestor(process.pid, process.pid) == process.pid
            assert returns_are_safe(process.pid)
        process.kill()
