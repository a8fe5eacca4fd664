"""ELF files: sections, symbols and the file offsets where a probe may be placed.

The kernel accepts a wrong offset, and the traced process dies of it. `Site` objects therefore come
from `ElfFile.site` only: the symbol must be a function in an executable section and segment, and
its bytes must be in the file.
"""

import os
import re
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from ingero.errors import ForeignFile, Unavailable
from ingero.files import FileId, identity_of, open_regular

ENDBR64: Final = b"\xf3\x0f\x1e\xfa"
MACHINES: Final = {62: "x86_64", 183: "aarch64", 247: "bpf"}
SHT_SYMTAB, SHT_REL, SHT_NOBITS, SHT_DYNSYM = 2, 9, 8, 11
STT_FUNC, STT_SECTION = 2, 3
_PT_LOAD, _PF_X, _SHF_EXECINSTR = 1, 1, 4
_SYMBOL: Final = struct.Struct("<IBBHQQ")
_SYMBOL_SIZE: Final = 24
# the largest libraries of PyTorch have half as many symbols and some forty sections
_MAX_SECTIONS, _MAX_SEGMENTS = 1024, 256
_MAX_PIECE: Final = 128 << 20
_MAX_SYMBOLS_BYTES: Final = 64 << 20
_MAX_NAMES_BYTES: Final = 1 << 20  # of sections
_MAX_NAME: Final = 4096
_MAX_PLACES: Final = 4096  # where one name occurs in a string table
_HEADER_BYTES: Final = 64
_PAGE_BYTES: Final = os.sysconf("SC_PAGESIZE")
_FIRST_BYTES: Final = 16
_VERSION: Final = re.compile(rb"\d{1,6}(?:_\d{1,6}){0,4}(?=\0)")


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
    """A place for a probe: `offset` in the file is where an instruction of `symbol` starts."""

    symbol: str
    offset: int
    first_bytes: bytes


class ElfFile:
    """A 64-bit little-endian ELF file; `close` it when done.

    It is read piece by piece and never mapped: a file that is truncated meanwhile must not kill the
    agent. Every read is checked against the size of the file and against limits, because the file
    is not trusted: a sparse one costs its owner nothing, whatever its size.
    """

    def __init__(self, path: str, file: FileId | None = None) -> None:
        """Open a file, which must be the one that `file` identifies where it is given."""
        self.path = path
        self._file, status = open_regular(path, follow=True)
        try:
            self.size = status.st_size
            if file not in (None, identity_of(status)):
                raise ForeignFile(f"{path} is another file by now")
            self._parse()
        except (struct.error, IndexError) as err:
            self.close()
            raise ForeignFile(f"{path} is a damaged ELF file: {err}") from None
        except BaseException:
            self.close()
            raise

    def _parse(self) -> None:
        header = os.pread(self._file, _HEADER_BYTES, 0)
        if len(header) < _HEADER_BYTES or header[:6] != b"\x7fELF\x02\x01":
            raise ForeignFile(f"{self.path} is not a 64-bit little-endian ELF file")
        self.machine = MACHINES.get(struct.unpack_from("<H", header, 18)[0], "unknown")
        (segments_at,) = struct.unpack_from("<Q", header, 32)
        sections_at, _, _, segment_size, segments, section_size, sections, names = (
            struct.unpack_from("<QIHHHHHH", header, 40)
        )
        if segments > _MAX_SEGMENTS or sections > _MAX_SECTIONS:
            raise ForeignFile(
                f"{self.path} has {segments} segments and {sections} sections; up to "
                f"{_MAX_SEGMENTS} and {_MAX_SECTIONS} are read"
            )
        self._segments = self._table("<IIQQQQQQ", segments_at, segment_size, segments)
        raw = self._table("<IIQQQQII", sections_at, section_size, sections)
        strings = self._read(raw[names][4], raw[names][5], _MAX_NAMES_BYTES) if raw else b""
        self.sections = [Section(text_at(strings, row[0]), *row[1:]) for row in raw]

    def _table(self, layout: str, at: int, row_size: int, rows: int) -> list[tuple[int, ...]]:
        if rows and row_size < struct.calcsize(layout):
            raise ForeignFile(f"{self.path} is a damaged ELF file: table rows of {row_size} bytes")
        data = self._read(at, row_size * rows)
        return [struct.unpack_from(layout, data, index * row_size) for index in range(rows)]

    def _read(self, at: int, size: int, limit: int = _MAX_PIECE) -> bytes:
        if not 0 <= at <= at + size <= self.size:
            raise ForeignFile(
                f"{self.path} is a damaged ELF file: {size} bytes at {at} are outside it"
            )
        if size > limit:
            raise ForeignFile(f"{self.path} has a table of {size} bytes; up to {limit} are read")
        data = os.pread(self._file, size, at)
        if len(data) != size:
            raise ForeignFile(f"{self.path} became shorter while it was read")
        return data

    def close(self) -> None:
        os.close(self._file)

    def content(self, section: Section) -> bytes:
        """The bytes of a section; zeros for one that has none in the file."""
        if section.kind == SHT_NOBITS:
            return bytes(min(section.size, _MAX_PIECE))
        return self._read(section.offset, section.size)

    def strings(self, section: Section) -> bytes:
        """Return the string table of a symbol table; empty when it is too large to be read."""
        if section.link >= len(self.sections):
            raise ForeignFile(
                f"{self.path} is a damaged ELF file: section {section.name} has no names"
            )
        names = self.sections[section.link]
        return self._read(names.offset, names.size) if names.size <= _MAX_PIECE else b""

    def table(self, kind: int) -> tuple[bytes, bytes]:
        """Return (rows, names) of the symbol table of one kind, whole rows only.

        Both are empty without a table, and for one that is too large to be read. ELF allows one
        table of each kind.
        """
        found = [section for section in self.sections if section.kind == kind]
        if len(found) > 1:
            raise ForeignFile(f"{self.path} has {len(found)} symbol tables of one kind")
        if not found or found[0].size > _MAX_SYMBOLS_BYTES:
            return b"", b""
        names = self.strings(found[0])
        size = found[0].size // _SYMBOL_SIZE * _SYMBOL_SIZE
        return (self._read(found[0].offset, size), names) if names else (b"", b"")

    def section(self, name: str) -> Section | None:
        return next((section for section in self.sections if section.name == name), None)

    def symbols(self, table: int) -> Iterator[Symbol]:
        """Yield all symbols of the table of one kind in file order, undefined ones included."""
        rows, names = self.table(table)
        for name, info, _, index, value, size in _SYMBOL.iter_unpack(rows):
            yield Symbol(text_at(names, name), info & 15, index, value, size)

    def functions(self, wanted: Iterable[str]) -> dict[str, Symbol]:
        """Return defined functions by name.

        Bytes are compared, because libraries have hundreds of thousands of symbols.
        """
        names = {name.encode() for name in wanted}
        found: dict[str, Symbol] = {}
        for kind in (SHT_DYNSYM, SHT_SYMTAB):
            if names:
                rows, strings = self.table(kind)
                for symbol in _search(rows, _places(self.path, strings, names)):
                    if symbol.kind == STT_FUNC:
                        found.setdefault(symbol.name, symbol)
                names -= {name.encode() for name in found}
        return found

    def site(self, symbol: Symbol) -> Site:
        """Return where a probe on this function goes.

        Raises Unavailable unless it is certain to be the start of an instruction.
        """
        section = self.sections[symbol.section] if symbol.section < len(self.sections) else None
        if symbol.kind != STT_FUNC or section is None or not section.flags & _SHF_EXECINSTR:
            raise Unavailable(f"{symbol.name} in {self.path} is not code")
        if not section.address <= symbol.value < section.address + section.size:
            raise Unavailable(f"{symbol.name} in {self.path} lies outside its section")
        if self.machine == "aarch64" and symbol.value % 4:
            raise Unavailable(f"{symbol.name} in {self.path} is not aligned like an instruction")
        offset = self._file_offset(symbol)
        first = self._read(offset, min(_FIRST_BYTES, self.size - offset))
        if self.machine == "x86_64" and first.startswith(ENDBR64) and symbol.size > len(ENDBR64):
            # a seventh of the cost: the kernel single-steps `endbr64`, but emulates `push`
            return Site(symbol.name, offset + len(ENDBR64), first[len(ENDBR64) :])
        return Site(symbol.name, offset, first)

    def _file_offset(self, symbol: Symbol) -> int:
        for kind, flags, offset, address, _, in_file, _, _ in self._segments:
            if kind == _PT_LOAD and flags & _PF_X and address <= symbol.value < address + in_file:
                at = int(symbol.value - address + offset)
                if at + max(symbol.size, 1) <= self.size:
                    return at
        raise Unavailable(f"{symbol.name} in {self.path} is in no executable segment of the file")

    def executable_segments(self) -> list[tuple[int, int, int]]:
        """Return (file offset, address, bytes in the file) of the segments that hold code."""
        return [
            (row[2], row[3], row[5])
            for row in self._segments
            if row[0] == _PT_LOAD and row[1] & _PF_X
        ]

    def data_symbol(self, name: str) -> int | None:
        """Return the linked address of a defined symbol of any kind; None when there is none."""
        for kind in (SHT_DYNSYM, SHT_SYMTAB):
            rows, strings = self.table(kind)
            found = next(_search(rows, _places(self.path, strings, {name.encode()})), None)
            if found is not None:
                return found.value
        return None

    def load_base(self, address: int, file_offset: int) -> int:
        """Return what a mapping of `file_offset` at `address` adds to every linked address."""
        for kind, _, offset, linked, _, in_file, _, _ in self._segments:
            if kind == _PT_LOAD and offset & -_PAGE_BYTES <= file_offset < offset + in_file:
                return int(address - (linked - offset + file_offset))
        raise Unavailable(f"{self.path} has no segment at {file_offset:#x}")

    def versioned(self, names: Iterable[str]) -> dict[str, str]:
        """Return `name_v2_10_3` with the highest version for each name that has one.

        Some libraries export only versioned names.
        """
        strings = self.table(SHT_DYNSYM)[1]
        found = ((name, _newest(self.path, strings, name)) for name in names)
        return {name: newest for name, newest in found if newest is not None}


def text_at(strings: bytes, at: int) -> str:
    """Return the name at a position of a string table; longer ones than 4096 bytes are cut."""
    end = strings.find(b"\0", at, at + _MAX_NAME)
    return strings[at : end if end >= 0 else at + _MAX_NAME].decode("utf-8", "replace")


def _places(path: str, strings: bytes, names: set[bytes]) -> dict[int, str]:
    """Return where each name is in a string table.

    Linkers share endings: a name may begin inside a longer one.
    """
    places: dict[int, str] = {}
    for name in names:
        position, count = -1, 0
        while (position := strings.find(name + b"\0", position + 1)) >= 0:
            places[position] = name.decode()
            count += 1
            if count > _MAX_PLACES:
                raise ForeignFile(f"{path} holds the name {name.decode()} over {_MAX_PLACES} times")
    return places


def _newest(path: str, strings: bytes, name: str) -> str | None:
    """Return the name with the highest version in a string table."""
    start, position, count = f"\0{name}_v".encode(), -1, 0
    best: tuple[tuple[int, ...], str] | None = None
    while (position := strings.find(start, position + 1)) >= 0:
        count += 1
        if count > _MAX_PLACES:
            raise ForeignFile(f"{path} holds the name {name} over {_MAX_PLACES} times")
        version = _VERSION.match(strings, position + len(start))
        if version is not None:
            text = version[0].decode()
            key = tuple(int(part) for part in text.split("_"))
            best = max(best or ((), ""), (key, f"{name}_v{text}"))
    return best[1] if best else None


def _search(rows: bytes, places: dict[int, str]) -> Iterator[Symbol]:
    """Yield the defined symbols whose names are at these places of the string table."""
    for name_at, info, _, index, value, size in _SYMBOL.iter_unpack(rows) if places else ():
        if index and name_at in places:
            yield Symbol(places[name_at], info & 15, index, value, size)
