"""ELF files: sections, symbols and the places where a probe may be put.

A wrong offset is accepted by the kernel and kills the traced process, so `Site` objects come from `ElfFile.site` only:
the symbol must be a function, lie in an executable section and segment, and its bytes must be in the file.
"""

import mmap
import os
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from ingero.errors import ForeignFile, Unavailable

ENDBR64: Final = b"\xf3\x0f\x1e\xfa"
MACHINES: Final = {62: "x86_64", 183: "aarch64", 247: "bpf"}
SHT_SYMTAB, SHT_REL, SHT_NOBITS, SHT_DYNSYM = 2, 9, 8, 11
STT_FUNC, STT_SECTION = 2, 3
_PT_LOAD, _PF_X, _SHF_EXECINSTR = 1, 1, 4
_SYMBOL: Final = struct.Struct("<IBBHQQ")
_SYMBOL_SIZE: Final = 24
_MAX_SECTIONS: Final = 8192


@dataclass(frozen=True, slots=True)
class Section:
    name: str
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int


@dataclass(frozen=True, slots=True)
class Symbol:
    name: str
    kind: int
    section: int
    value: int
    size: int


@dataclass(frozen=True, slots=True)
class Site:
    """A place for a probe: `offset` in the file is the start of an instruction of function `symbol`."""

    symbol: str
    offset: int
    first_bytes: bytes


class ElfFile:
    """A 64-bit little-endian ELF file, read through mmap; `close` when done."""

    def __init__(self, path: str) -> None:
        self.path = path
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            if os.fstat(descriptor).st_size < 64:
                raise ForeignFile(f"{path} is too short for an ELF file")
            self._data = mmap.mmap(descriptor, 0, prot=mmap.PROT_READ)
        finally:
            os.close(descriptor)
        try:
            self._parse()
        except (struct.error, IndexError) as err:
            raise ForeignFile(f"{path} is a damaged ELF file: {err}") from None

    def _parse(self) -> None:
        data = self._data
        if data[:6] != b"\x7fELF\x02\x01":
            raise ForeignFile(f"{self.path} is not a 64-bit little-endian ELF file")
        self.machine = MACHINES.get(struct.unpack_from("<H", data, 18)[0], "unknown")
        (segments_at,) = struct.unpack_from("<Q", data, 32)
        sections_at, _, _, segment_size, segments, section_size, sections, names = struct.unpack_from(
            "<QIHHHHHH", data, 40
        )
        self._segments = [
            struct.unpack_from("<IIQQQQQQ", data, segments_at + index * segment_size) for index in range(segments)
        ]
        raw = [
            struct.unpack_from("<IIQQQQII", data, sections_at + index * section_size)
            for index in range(min(sections, _MAX_SECTIONS))
        ]
        strings_at = raw[names][4] if raw else 0
        self.sections = [Section(self._text(strings_at + row[0]), *row[1:]) for row in raw]

    def close(self) -> None:
        self._data.close()

    def _text(self, at: int) -> str:
        end = self._data.find(b"\0", at)
        return self._data[at:end].decode("utf-8", "replace")

    def content(self, section: Section) -> bytes:
        """The bytes of a section; zeros for one that has none in the file."""
        if section.kind == SHT_NOBITS:
            return bytes(section.size)
        return self._data[section.offset : section.offset + section.size]

    def section(self, name: str) -> Section | None:
        return next((section for section in self.sections if section.name == name), None)

    def symbols(self, table: int) -> Iterator[Symbol]:
        """All symbols of the tables of one kind, in file order (undefined ones too)."""
        for section in self.sections:
            if section.kind != table:
                continue
            names_at = self.sections[section.link].offset
            for name, info, _, index, value, size in _SYMBOL.iter_unpack(self._whole_rows(section)):
                yield Symbol(self._text(names_at + name), info & 15, index, value, size)

    def _whole_rows(self, section: Section) -> bytes:
        return self._data[section.offset : section.offset + section.size // _SYMBOL_SIZE * _SYMBOL_SIZE]

    def functions(self, wanted: Iterable[str]) -> dict[str, Symbol]:
        """Defined functions by name; compares bytes, because libraries have hundreds of thousands of symbols."""
        names = {name.encode() for name in wanted}
        found: dict[str, Symbol] = {}
        for kind in (SHT_DYNSYM, SHT_SYMTAB):
            for section in self.sections:
                if section.kind == kind and names:
                    self._search(section, names, found)
            names -= {name.encode() for name in found}
        return found

    def _search(self, section: Section, names: set[bytes], found: dict[str, Symbol]) -> None:
        table = self.sections[section.link]
        strings = self._data[table.offset : table.offset + table.size]
        at = {}
        for name in names:
            position = -1
            while (position := strings.find(name + b"\0", position + 1)) >= 0:
                at[position] = name  # linkers share tails: the name may begin inside a longer one
        for name_at, info, _, index, value, size in _SYMBOL.iter_unpack(self._whole_rows(section)):
            if name_at in at and info & 15 == STT_FUNC and index:
                text = at[name_at].decode()
                found.setdefault(text, Symbol(text, STT_FUNC, index, value, size))

    def site(self, symbol: Symbol) -> Site:
        """Where a probe on this function goes; refuses anything that is not provably the start of an instruction."""
        section = self.sections[symbol.section] if symbol.section < len(self.sections) else None
        if symbol.kind != STT_FUNC or section is None or not section.flags & _SHF_EXECINSTR:
            raise Unavailable(f"{symbol.name} in {self.path} is not code")
        if not section.address <= symbol.value < section.address + section.size:
            raise Unavailable(f"{symbol.name} in {self.path} lies outside its section")
        if self.machine == "aarch64" and symbol.value % 4:
            raise Unavailable(f"{symbol.name} in {self.path} is not aligned like an instruction")
        offset = self._file_offset(symbol)
        first = self._data[offset : offset + 16]
        if self.machine == "x86_64" and first.startswith(ENDBR64) and symbol.size > len(ENDBR64):
            # the kernel emulates `push` but single-steps `endbr64`: one instruction later costs a seventh
            return Site(symbol.name, offset + len(ENDBR64), first[len(ENDBR64) :])
        return Site(symbol.name, offset, first)

    def _file_offset(self, symbol: Symbol) -> int:
        for kind, flags, offset, address, _, in_file, _, _ in self._segments:
            if kind == _PT_LOAD and flags & _PF_X and address <= symbol.value < address + in_file:
                at = int(symbol.value - address + offset)
                if at + max(symbol.size, 1) <= len(self._data):
                    return at
        raise Unavailable(f"{symbol.name} in {self.path} is in no executable segment of the file")

    def executable_segments(self) -> list[tuple[int, int, int]]:
        """(file offset, address, bytes in the file) of the segments that hold code."""
        return [(row[2], row[3], row[5]) for row in self._segments if row[0] == _PT_LOAD and row[1] & _PF_X]

    def data_symbol(self, name: str) -> int | None:
        """Address of a defined symbol of any kind, as linked; None when there is none."""
        for kind in (SHT_DYNSYM, SHT_SYMTAB):
            found = next((one for one in self.symbols(kind) if one.name == name and one.section), None)
            if found is not None:
                return found.value
        return None

    def load_base(self, address: int, file_offset: int) -> int:
        """What a mapping of `file_offset` at `address` adds to every linked address."""
        for kind, _, offset, linked, _, in_file, _, _ in self._segments:
            if kind == _PT_LOAD and offset & -4096 <= file_offset < offset + in_file:
                return int(address - (linked - offset + file_offset))
        raise Unavailable(f"{self.path} has no segment at {file_offset:#x}")

    def versioned(self, name: str) -> str | None:
        """`name_v2_10_3` with the highest version, where a library only exports versioned names."""
        pattern = re.compile(rb"\0(" + re.escape(name.encode()) + rb"_v(\d+(?:_\d+)*))(?=\0)")
        best: tuple[tuple[int, ...], str] | None = None
        for section in self.sections:
            if section.kind == SHT_DYNSYM:
                strings = self.content(self.sections[section.link])
                for match in pattern.finditer(strings):
                    key = tuple(int(part) for part in match[2].split(b"_"))
                    best = max(best or ((), ""), (key, match[1].decode()))
        return best[1] if best else None
