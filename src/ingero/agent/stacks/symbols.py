"""Native symbols: addresses of a stack become `function+0x1f` in a file, by what the process has mapped."""

import bisect
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np

from ingero.agent.ebpf.elf import SHT_DYNSYM, SHT_SYMTAB, STT_FUNC, ElfFile
from ingero.errors import ForeignFile

_SYMBOL: Final = np.dtype(
    [("name", "<u4"), ("info", "u1"), ("other", "u1"), ("section", "<u2"), ("value", "<u8"), ("size", "<u8")]
)
_CACHED_FILES: Final = 64
_CACHED_PROCESSES: Final = 256
_DELETED: Final = " (deleted)"


@dataclass(frozen=True, slots=True)
class NativeFrame:
    """One frame; `symbol` and `file` are None where nothing is known of the address."""

    address: int
    symbol: str | None
    offset: int
    file: str | None

    @property
    def text(self) -> str:
        if self.symbol is None:
            return f"{self.address:#x}"
        return f"{self.symbol}+{self.offset:#x}" if self.offset else self.symbol


@dataclass(frozen=True, slots=True)
class _Region:
    start: int
    end: int
    file_offset: int
    path: str
    opened: str


class FunctionTable:
    """Functions of one ELF file, sorted by address; names are read when asked for."""

    def __init__(self, path: str) -> None:
        elf = ElfFile(path)
        try:
            self._segments = elf.executable_segments()
            parts, texts = [], list[bytes]()
            for kind in (SHT_SYMTAB, SHT_DYNSYM):
                for data, names in elf.tables(kind):
                    rows = np.frombuffer(data, _SYMBOL)
                    rows = rows[((rows["info"] & 15) == STT_FUNC) & (rows["section"] > 0)]
                    parts.append((rows["value"], rows["size"], rows["name"], np.full(len(rows), len(texts))))
                    texts.append(names)
        finally:
            elf.close()
        self._texts = texts
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)] if parts else [np.empty(0)] * 4
        order = np.argsort(columns[0], kind="stable")
        self._values, self._sizes, self._names, self._tables = (column[order] for column in columns)

    def find(self, file_offset: int) -> tuple[str, int] | None:
        """(function, distance from its start) of a place in the file; None outside of every function."""
        address = next(
            (file_offset - at + virtual for at, virtual, size in self._segments if at <= file_offset < at + size), None
        )
        if address is None or not len(self._values):
            return None
        index = int(np.searchsorted(self._values, address, side="right")) - 1
        if index < 0:
            return None
        start, size = int(self._values[index]), int(self._sizes[index])
        if size and address >= start + size:
            return None
        text = self._texts[int(self._tables[index])]
        at = int(self._names[index])
        return text[at : text.find(b"\0", at)].decode("utf-8", "replace"), address - start


class Symbolizer:
    """Resolves addresses of running processes. Mappings are kept per process, symbols per file, both bounded."""

    def __init__(self) -> None:
        self._regions: dict[int, list[_Region]] = {}
        self._tables: dict[str, FunctionTable | None] = {}

    def forget(self, pid: int) -> None:
        """After exec, dlopen or the end of a process."""
        self._regions.pop(pid, None)

    def resolve(self, pid: int, addresses: Iterable[int]) -> list[NativeFrame]:
        """One frame per address; an address outside the known mappings reads them once more."""
        wanted = list(addresses)
        regions = self._regions.get(pid)
        if regions is None or any(_region_of(regions, address) is None for address in wanted):
            regions = self._read(pid)
        return [self._frame(regions, address) for address in wanted]

    def _frame(self, regions: list[_Region], address: int) -> NativeFrame:
        region = _region_of(regions, address)
        if region is None:
            return NativeFrame(address, None, 0, None)
        table = self._table(region)
        found = table.find(address - region.start + region.file_offset) if table else None
        symbol, distance = found or (None, 0)
        return NativeFrame(address, symbol, distance, region.path)

    def _table(self, region: _Region) -> FunctionTable | None:
        if region.opened not in self._tables:
            if len(self._tables) >= _CACHED_FILES:
                self._tables.clear()
            try:
                self._tables[region.opened] = FunctionTable(region.opened)
            except (OSError, ForeignFile):
                self._tables[region.opened] = None  # remembered: not asked again for every frame
        return self._tables[region.opened]

    def _read(self, pid: int) -> list[_Region]:
        if len(self._regions) >= _CACHED_PROCESSES:
            self._regions.clear()
        try:
            with open(f"/proc/{pid}/maps") as file:  # noqa: PTH123 - a kernel file, read whole
                lines = file.read().splitlines()
        except OSError:
            return []  # gone: nothing can be said about its addresses any more
        regions = []
        for line in lines:
            fields = line.split(maxsplit=5)
            if len(fields) < 6 or "x" not in fields[1] or not fields[5].startswith("/"):
                continue
            start, _, end = fields[0].partition("-")
            path = fields[5].removesuffix(_DELETED)
            spot = (int(start, 16), int(end, 16), int(fields[2], 16))
            regions.append(_Region(*spot, path, f"/proc/{pid}/map_files/{fields[0]}"))
        self._regions[pid] = regions
        return regions


def _region_of(regions: list[_Region], address: int) -> _Region | None:
    index = bisect.bisect_right(regions, address, key=lambda region: region.start) - 1
    return regions[index] if index >= 0 and address < regions[index].end else None
