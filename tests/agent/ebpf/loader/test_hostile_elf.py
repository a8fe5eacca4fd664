"""Libraries and type information that somebody made to stop the reader."""

import os
import struct
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.elf_files import Part, symbol, write_elf

from ingero.agent.ebpf.attach import find_sites
from ingero.agent.ebpf.loader.btf import FUNC, STRUCT, TYPEDEF, VMLINUX, Btf
from ingero.agent.ebpf.loader.elf import SHT_DYNSYM, SHT_SYMTAB, ElfFile
from ingero.agent.processes.discover import Library
from ingero.agent.processes.maps import identify
from ingero.agent.stacks.symbols import FunctionTable
from ingero.errors import ForeignFile, IngeroError

STRINGS = 3


def bounded(
    read: Callable[[], object], seconds: float = 2.0, memory_bytes: int = 600 << 20
) -> None:
    """Read a file that may be refused; it must not take long nor much memory."""
    tracemalloc.start()
    began_s = time.thread_time()
    try:
        read()
    except IngeroError as error:
        assert str(error)
    finally:
        spent_s, peak = time.thread_time() - began_s, tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert spent_s < seconds
    assert peak < memory_bytes


def look_up(path: Path) -> None:
    """Do everything that is done with a library of a traced process."""
    FunctionTable(str(path)).find(5000)
    elf = ElfFile(str(path))
    elf.functions(["plain", "cudaLaunchKernel"])
    elf.data_symbol("_PyRuntime")
    elf.versioned(["plain"])
    elf.close()


def test_sparse_library_with_thousands_of_symbol_tables_is_refused_at_once(tmp_path: Path) -> None:
    table = Part(SHT_SYMTAB, b"", 64 << 20, link=1)
    many = write_elf(tmp_path / "many.so", [Part(STRINGS, b"\0", 64 << 20), *[table] * 8000])
    few = write_elf(tmp_path / "few.so", [Part(STRINGS, b"\0", 64 << 20), *[table] * 500])
    bounded(lambda: look_up(many), 0.5, 8 << 20)
    bounded(lambda: look_up(few), 0.5, 8 << 20)
    with pytest.raises(ForeignFile, match="500 symbol tables"):
        look_up(few)


def test_sparse_tables_of_any_size_are_bounded(tmp_path: Path) -> None:
    for size in (64 << 20, 128 << 20, 1 << 40):
        parts = [
            Part(STRINGS, b"\0", min(size * 2, 128 << 20)),
            Part(SHT_SYMTAB, b"", size, link=1),
            Part(SHT_DYNSYM, b"", size, link=1),
        ]
        bounded(lambda parts=parts: look_up(write_elf(tmp_path / "large.so", parts)), 8.0)


def test_table_that_is_too_large_leaves_the_other_one_usable(tmp_path: Path) -> None:
    parts = [
        Part(STRINGS, b"\0plain\0"),
        Part(SHT_DYNSYM, symbol(1, value=100), link=1),
        Part(SHT_SYMTAB, b"", 1 << 40, link=1),
    ]
    elf = ElfFile(str(write_elf(tmp_path / "unstripped.so", parts)))
    assert set(elf.functions(["plain", "missing"])) == {"plain"}
    elf.close()


def test_names_without_an_end_are_cut(tmp_path: Path) -> None:
    rows = b"".join(symbol(0, value=100 + index) for index in range(50_000))
    parts = [Part(STRINGS, b"x" * (8 << 20)), Part(SHT_SYMTAB, rows, link=1)]
    path = write_elf(tmp_path / "endless.so", parts)
    bounded(lambda: look_up(path), memory_bytes=64 << 20)
    found = FunctionTable(str(path)).find(103)
    assert found == ("x" * 4096, 0)


def test_name_that_occurs_everywhere_is_refused(tmp_path: Path) -> None:
    parts = [Part(STRINGS, b"plain\0" * 500_000), Part(SHT_DYNSYM, symbol(0), link=1)]
    path = write_elf(tmp_path / "repeated.so", parts)
    bounded(lambda: look_up(path), memory_bytes=64 << 20)
    with pytest.raises(ForeignFile, match="over 4096 times"):
        look_up(path)


def test_version_of_any_length_is_no_number(tmp_path: Path) -> None:
    names = b"\0plain_v" + b"9" * 9000 + b"\0plain_v2_7\0plain_v" + b"1_" * 9000 + b"1\0"
    parts = [Part(STRINGS, names), Part(SHT_DYNSYM, symbol(1), link=1)]
    elf = ElfFile(str(write_elf(tmp_path / "versions.so", parts)))
    assert elf.versioned(["plain"]) == {"plain": "plain_v2_7"}
    elf.close()


def test_a_library_that_lacks_all_functions_is_read_once(tmp_path: Path, monkeypatch) -> None:
    """Before, its tables were read again for every function: seven seconds for a sparse file."""
    part = Part(SHT_DYNSYM, b"", 1 << 20, link=1)
    path = write_elf(tmp_path / "libcudart.so.12", [Part(STRINGS, b"\0", 1 << 20), part])
    read, sizes = os.pread, []
    monkeypatch.setattr(os, "pread", lambda *asked: sizes.append(asked[1]) or read(*asked))
    assert find_sites(str(path), Library.CUDART, "x86_64") == {}
    assert sum(size == 1 << 20 for size in sizes) == 2, "names of functions, and of their versions"


def test_many_segments_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ForeignFile, match="60000 segments"):
        ElfFile(str(write_elf(tmp_path / "segments.so", [], segments=60_000)))


def test_pipes_devices_and_folders_are_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    (tmp_path / "link").symlink_to(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path / "link", tmp_path, Path("/dev/zero")):
        with pytest.raises(ForeignFile, match="not a regular file"):
            ElfFile(str(path))


def test_file_that_took_the_place_of_another_is_refused(tmp_path: Path) -> None:
    path = write_elf(tmp_path / "one.so", [Part(STRINGS, b"\0")])
    before = identify(str(path))
    ElfFile(str(path), before).close()
    path.rename(tmp_path / "kept.so")
    write_elf(path, [Part(STRINGS, b"\0\0")])
    with pytest.raises(ForeignFile, match="another file by now"):
        ElfFile(str(path), before)


VALID = [
    Part(STRINGS, b"\0plain\0_PyRuntime\0plain_v2_10\0"),
    Part(SHT_DYNSYM, symbol(1, value=120) + symbol(7, info=0x11), link=1),
    Part(SHT_SYMTAB, symbol(1, value=120) + symbol(7), link=1),
]
NUMBERS = st.sampled_from([0, 1, 2, 255, 65535, 2**31, 2**32 - 1, 2**62, 2**63, 2**64 - 1])
CHANGES = st.lists(
    st.tuples(st.floats(0, 0.999), NUMBERS, st.sampled_from([1, 2, 4, 8])), max_size=10
)


def changed(data: bytes, changes: list[tuple[float, int, int]]) -> bytes:
    result = bytearray(data)
    for share, value, size in changes:
        at = int(share * len(result))
        result[at : at + size] = (value % 2 ** (8 * size)).to_bytes(size, "little")
    return bytes(result[: len(data)])


@given(changes=CHANGES)
@settings(max_examples=300, deadline=None)
def test_changed_library_is_read_or_refused_with_a_sentence(tmp_path_factory, changes) -> None:
    folder = tmp_path_factory.mktemp("elf")
    path = write_elf(folder / "valid.so", VALID)
    path.write_bytes(changed(path.read_bytes(), changes))
    try:
        look_up(path)
    except IngeroError as error:
        assert str(error)


def a_btf() -> bytes:
    """A struct with a named and two anonymous members, a typedef, a prototype and a function."""
    strings = b"\0int\0outer\0inner\0btf_trace_x\0x\0"
    outer, inner, trace = strings.index(b"outer"), strings.index(b"inner"), strings.index(b"btf_")
    types = b"".join(
        (
            struct.pack("<IIII", 1, 1 << 24, 4, 32),  # 1: int
            struct.pack("<IIIIII", inner, 4 << 24 | 1, 4, inner, 1, 0),  # 2: struct inner
            struct.pack("<III", outer, 4 << 24 | 2, 8) + struct.pack("<6I", 0, 2, 0, outer, 2, 32),
            struct.pack("<III", 0, 13 << 24 | 2, 0) + struct.pack("<4I", 0, 1, 0, 3),  # 4
            struct.pack("<III", 0, 2 << 24, 4),  # 5: pointer to it
            struct.pack("<III", trace, 8 << 24, 5),  # 6: typedef
            struct.pack("<III", inner, 12 << 24, 4),  # 7: function
        )
    )
    head = struct.pack("<HBBIIIII", 0xEB9F, 1, 0, 24, 0, len(types), len(types), len(strings))
    return head + types + strings


def use_btf(raw: bytes) -> tuple[object, ...]:
    btf = Btf(raw)
    found = btf.find(["outer"], STRUCT).get("outer", 0)
    functions, typedefs = btf.find(["inner"], FUNC), btf.find(["btf_trace_x"], TYPEDEF)
    for number in range(len(btf)):
        btf.kind_of(number)
    offsets = [btf.offset_of(found, name) for name in ("inner", "outer.inner", "missing")]
    return len(btf), offsets, functions, typedefs, btf.parameters("x")


def test_type_information_is_read() -> None:
    assert use_btf(a_btf()) == (8, [0, 4, None], {"inner": 7}, {"btf_trace_x": 6}, [3])


@pytest.mark.skipif(not Path(VMLINUX).exists(), reason="this kernel has no BTF")
def test_type_information_of_the_kernel_is_read() -> None:
    btf = Btf(Path(VMLINUX).read_bytes())
    task = btf.find(["task_struct"], STRUCT)["task_struct"]
    assert btf.offset_of(task, "pid") and btf.offset_of(task, "se.vruntime")


@given(changes=CHANGES, cut=st.integers(0, 400))
@settings(max_examples=500, deadline=None)
def test_changed_type_information_is_read_or_refused_with_a_sentence(changes, cut) -> None:
    raw = changed(a_btf(), changes)
    try:
        use_btf(raw[: len(raw) - cut * (cut % 3 == 0)])
    except ForeignFile as error:
        assert str(error)


@given(raw=st.binary(max_size=400))
def test_any_bytes_are_no_type_information(raw: bytes) -> None:
    for data in (raw, a_btf()[:24] + raw):
        try:
            use_btf(data)
        except ForeignFile as error:
            assert str(error)
