"""ELF files of strangers: a place for a probe is inside code of the file, or there is an error."""

from tests.support.fuzzing import file_with

from ingero.agent.ebpf.loader.elf import SHT_DYNSYM, SHT_SYMTAB, ElfFile
from ingero.agent.stacks.symbols import FunctionTable
from ingero.errors import ForeignFile, Unavailable

NAMES = ("ncclAllReduce", "f", "main")


def fuzz(data: bytes) -> None:
    """Whatever the file holds."""
    path = str(file_with(data, "library.so"))
    try:
        elf = ElfFile(path)
    except ForeignFile:
        return
    try:
        _read(elf, len(data))
    except ForeignFile:
        pass
    finally:
        elf.close()
    try:
        table = FunctionTable(path)
    except ForeignFile:
        return
    for offset in (0, 64, len(data) // 2, len(data)):
        found = table.find(offset)
        assert found is None or found[1] >= 0


def _read(elf: ElfFile, size: int) -> None:
    for symbol in elf.functions(NAMES).values():
        try:
            site = elf.site(symbol)
        except Unavailable:
            continue
        assert 0 <= site.offset < size
        inside = (at <= site.offset < at + length for at, _, length in elf.executable_segments())
        assert any(inside)
    for section in elf.sections[:4]:
        if section.size <= 1 << 20:
            elf.content(section)
    elf.data_symbol("_PyRuntime")
    elf.versioned(["cudaLaunch"])
    for kind in (SHT_SYMTAB, SHT_DYNSYM):
        for _ in zip(elf.symbols(kind), range(100), strict=False):
            pass
    try:
        elf.load_base(1 << 40, 0)
    except Unavailable:
        return
