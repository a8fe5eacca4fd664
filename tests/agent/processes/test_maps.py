"""F129: mappings are read whatever the names of files, and files are identified by content."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.compiler import compile_c

from ingero.agent.ebpf.attach import SiteCache
from ingero.agent.ebpf.loader.elf import ElfFile
from ingero.agent.processes.discover import Library, MappedLibrary, mapped_libraries
from ingero.agent.processes.maps import find_regions, identify, openable
from ingero.agent.stacks.interpreters import find_python
from ingero.agent.stacks.symbols import Symbolizer

MAP_AND_WAIT = """
import mmap, os, sys
names = map(os.fsencode, sys.argv[1:])
maps = [mmap.mmap(os.open(name, os.O_RDONLY), 4096, prot=mmap.PROT_READ) for name in names]
print("ready", flush=True)
sys.stdin.readline()
"""


def test_a_file_name_that_is_no_text_hides_nothing(tmp_path: Path) -> None:
    odd, library = os.fsencode(tmp_path) + b"/caf\xe9.bin", tmp_path / "libcudart.so.12"
    for path in (Path(os.fsdecode(odd)), library):
        path.write_bytes(bytes(4096))
    command = [sys.executable, "-c", MAP_AND_WAIT, odd, library]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline()
        assert [one.path for one in mapped_libraries(process.pid)] == [str(library)]
        assert find_python(process.pid) is not None
        assert Symbolizer().resolve(process.pid, [0x10])[0].symbol is None
        process.kill()


def test_places_for_probes_are_not_taken_from_another_file_with_the_same_number(
    tmp_path: Path,
) -> None:
    """An upgrade may reuse the inode or overwrite the file.

    An old probe site in a new file kills the process.
    """
    real, path = Path(os.path.realpath(sys.executable)), tmp_path / "libcudart.so.12"
    shutil.copy(real, path)
    status = path.stat()
    library = MappedLibrary(Library.CUDART, str(path), str(path), "fe:00", status.st_ino)
    cache = SiteCache()
    first, before = cache.sites(os.getpid(), library), identify(str(path))
    assert cache.sites(os.getpid(), library) is first
    path.write_bytes(real.read_bytes() + bytes(16))
    assert path.stat().st_ino == status.st_ino and identify(str(path)) != before
    assert cache.sites(os.getpid(), library) is not first


def test_a_program_at_a_fixed_low_address_is_opened(tmp_path: Path) -> None:
    """So are the interpreters of many distributions: they were read as "no Python at all"."""
    source, program = tmp_path / "fixed.c", tmp_path / "fixed"
    source.write_text(
        '#include <unistd.h>\nint main(void) { char c; write(1, "!", 1); return read(0, &c, 1); }'
    )
    compile_c(source, program, "-no-pie")
    with subprocess.Popen([program], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.read(1)
        region = next(one for one in find_regions(process.pid) if one.path == str(program))
        assert region.start < 1 << 32
        path = openable(process.pid, region)
        assert path == region.file
        ElfFile(path).close()
        process.kill()


def test_interpreters_are_found_without_the_right_to_open_mapped_files() -> None:
    if os.geteuid():
        pytest.skip("reading another process needs root or ptrace rights")
    find = "import sys; from ingero.agent.stacks.interpreters import find_python as f; "
    find += "import os; from glob import glob; print(f(int(sys.argv[1])) is not None); "
    find += "os.open(sorted(glob(f'/proc/{sys.argv[1]}/map_files/*'))[0], os.O_RDONLY)"
    without = ["setpriv", "--bounding-set", "-sys_admin,-checkpoint_restore"]
    sleeper = [sys.executable, "-c", "print(flush=True); input()"]
    with subprocess.Popen(sleeper, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout and process.stdout.readline()
        command = [*without, sys.executable, "-c", find, str(process.pid)]
        found = subprocess.run(command, capture_output=True, text=True, check=False)
        process.kill()
    assert "PermissionError" in found.stderr and found.stdout == "True\n"
