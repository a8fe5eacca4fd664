"""F129: a probe goes to the start of an instruction of a function, or nowhere."""

import ctypes
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.compiler import compile_c

from ingero.agent.ebpf.loader.elf import ENDBR64, STT_FUNC, ElfFile, Symbol
from ingero.agent.stacks.symbols import FunctionTable
from ingero.errors import ForeignFile, IngeroError, Unavailable

SOURCE = """
#define API __attribute__((visibility("default"), noinline))
int table[4] = {1, 2, 3, 4};
API int plain(int a) { return a * table[1]; }
#ifdef __x86_64__
__asm__(".text\\n.globl guarded\\n.type guarded,@function\\n"
        "guarded: endbr64\\n push %rbp\\n pop %rbp\\n mov $7,%eax\\n ret\\n"
        ".size guarded,.-guarded\\n"
        ".globl tiny\\n.type tiny,@function\\ntiny: endbr64\\n.size tiny,.-tiny\\n ret\\n");
#endif
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("elf")
    (folder / "lib.c").write_text(SOURCE)
    options = ("-shared", "-fPIC", "-O1", "-target", "x86_64-linux-gnu")
    return compile_c(folder / "lib.c", folder / "lib.so", *options)


def functions(library: Path, *names: str) -> tuple[ElfFile, dict[str, Symbol]]:
    elf = ElfFile(str(library))
    return elf, elf.functions(names)


def test_offset_points_at_the_first_instruction(library: Path) -> None:
    elf, found = functions(library, "plain", "missing")
    assert set(found) == {"plain"}
    site = elf.site(found["plain"])
    assert library.read_bytes()[site.offset : site.offset + 16] == site.first_bytes
    loaded = ctypes.CDLL(str(library))  # what the dynamic linker finds under that name
    address = ctypes.cast(loaded.plain, ctypes.c_void_p).value
    assert address is not None
    assert ctypes.string_at(address, 16) == site.first_bytes


def test_endbr64_is_stepped_over_only_inside_the_function(library: Path) -> None:
    elf, found = functions(library, "guarded", "tiny")
    data = library.read_bytes()
    guarded, tiny = elf.site(found["guarded"]), elf.site(found["tiny"])
    assert data[guarded.offset - 4 : guarded.offset] == ENDBR64
    assert guarded.first_bytes[0] == 0x55, "push %rbp, which the kernel emulates"
    assert data[tiny.offset : tiny.offset + 4] == ENDBR64, "nothing of the function follows: stay"


def test_anything_but_code_is_refused(library: Path) -> None:
    elf, found = functions(library, "plain")
    plain = found["plain"]
    data_section = next(index for index, one in enumerate(elf.sections) if one.name == ".data")
    with pytest.raises(Unavailable, match="not code"):
        elf.site(replace(plain, section=data_section, value=elf.sections[data_section].address))
    with pytest.raises(Unavailable, match="not code"):
        elf.site(replace(plain, kind=1))
    with pytest.raises(Unavailable, match="outside its section"):
        elf.site(replace(plain, value=plain.value + (1 << 30)))
    with pytest.raises(Unavailable):
        elf.site(Symbol("far", STT_FUNC, 60_000, plain.value, 4))


@given(
    cut=st.integers(0, 4000),
    flips=st.lists(st.tuples(st.floats(0, 0.999), st.integers(0, 255)), max_size=12),
    tail=st.lists(st.tuples(st.integers(1, 2000), st.integers(0, 255)), max_size=12),
)
@settings(max_examples=150, deadline=None)
def test_damaged_files_are_refused_with_a_sentence_never_a_crash(
    library: Path, cut: int, flips: list[tuple[float, int]], tail: list[tuple[int, int]]
) -> None:
    """Anybody may own the file: wherever it is damaged, headers at both ends included."""
    data = bytearray(library.read_bytes())
    for share, value in flips:
        data[int(share * len(data))] = value
    for back, value in tail:
        data[-back] = value
    broken = library.parent / "broken.so"
    broken.write_bytes(data[: len(data) - cut * (cut % 3 == 0)])
    try:
        FunctionTable(str(broken)).find(5000)
        elf = ElfFile(str(broken))
        elf.versioned(["plain"])
        for symbol in elf.functions(["plain", "guarded"]).values():
            site = elf.site(symbol)
            assert 0 <= site.offset < len(data)
        elf.close()
    except IngeroError as refused:
        assert str(refused)


def test_file_that_is_cut_short_meanwhile_is_refused_not_fatal(library: Path) -> None:
    copy = library.parent / "copy.so"
    shutil.copy(library, copy)
    elf = ElfFile(str(copy))
    os.truncate(copy, 200)
    with pytest.raises(ForeignFile, match="became shorter"):
        elf.functions(["plain"])
    elf.close()


def test_text_file_is_not_elf(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("hello" * 100)
    with pytest.raises(ForeignFile, match="not a 64-bit little-endian ELF"):
        ElfFile(str(tmp_path / "x"))


def test_versioned_names_are_chosen_by_number_not_by_spelling(tmp_path: Path) -> None:
    body = "".join(
        f'__attribute__((visibility("default"))) int {name}(void) {{ return 0; }}\n'
        for name in VERSIONED
    )
    (tmp_path / "v.c").write_text(body)
    compile_c(tmp_path / "v.c", tmp_path / "v.so", "-shared", "-fPIC")
    elf = ElfFile(str(tmp_path / "v.so"))
    assert elf.versioned(["ncclSend"]) == {"ncclSend": "ncclSend_v2_10_3"}


VERSIONED = ("ncclSend_v2_9_9", "ncclSend_v2_10_3", "ncclSend_v2_10", "ncclSendX_v3_0_0")
