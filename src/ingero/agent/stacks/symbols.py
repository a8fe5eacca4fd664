"""Native symbols: addresses of a stack become `function+0x1f` in a mapped file."""

import bisect
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from ingero.agent.ebpf.loader.elf import SHT_DYNSYM, SHT_SYMTAB, STT_FUNC, ElfFile, text_at
from ingero.agent.processes.budget import UserBudget
from ingero.agent.processes.discover import user_of
from ingero.agent.processes.maps import Region, find_regions, identify, openable
from ingero.errors import ForeignFile
from ingero.files import FileId

_SYMBOL: Final = np.dtype(
    [
        ("name", "<u4"),
        ("info", "u1"),
        ("other", "u1"),
        ("section", "<u2"),
        ("value", "<u8"),
        ("size", "<u8"),
    ]
)
_CACHED_FILES: Final = 64
_CACHED_BYTES: Final = 256 << 20  # of symbol tables
_CACHED_PROCESSES: Final = 256
_READ_AGAIN_S: Final = 1.0
# CPU time for maps and symbol tables; the largest library of PyTorch takes about a second
CPU_PER_S, CPU_BURST_S = 0.05, 5.0


@dataclass(frozen=True, slots=True)
class NativeFrame:
    """One frame; `symbol` and `file` are None where they are unknown."""

    address: int
    symbol: str | None
    offset: int
    file: str | None

    @property
    def text(self) -> str:
        if self.symbol is None:
            return f"{self.address:#x}"
        return f"{self.symbol}+{self.offset:#x}" if self.offset else self.symbol


class FunctionTable:
    """Functions of one ELF file, sorted by address; names are read on demand."""

    def __init__(self, path: str, file: FileId | None = None) -> None:
        elf = ElfFile(path, file)
        try:
            self._segments = elf.executable_segments()
            parts, texts = [], list[bytes]()
            for kind in (SHT_SYMTAB, SHT_DYNSYM):
                data, names = elf.table(kind)
                rows = np.frombuffer(data, _SYMBOL)
                rows = rows[((rows["info"] & 15) == STT_FUNC) & (rows["section"] > 0)]
                parts.append(
                    (rows["value"], rows["size"], rows["name"], np.full(len(rows), len(texts)))
                )
                texts.append(names if len(rows) else b"")
        finally:
            elf.close()
        self._texts = texts
        self.size_bytes = sum(len(text) for text in texts) + 32 * sum(len(one[0]) for one in parts)
        columns = [np.concatenate(column) for column in zip(*parts, strict=True)]
        order = np.argsort(columns[0], kind="stable")
        self._values, self._sizes, self._names, self._tables = (column[order] for column in columns)

    def find(self, file_offset: int) -> tuple[str, int] | None:
        """Return (function, distance from its start) of a file offset; None outside functions."""
        address = next(
            (
                file_offset - at + virtual
                for at, virtual, size in self._segments
                if at <= file_offset < at + size
            ),
            None,
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
        return text_at(text, int(self._names[index])), address - start


@dataclass(slots=True)
class _Mapped:
    """The mapped code of one process, and the identity of each file when it was first used."""

    regions: list[Region]
    read_s: float
    files: dict[int, FileId | None] = field(default_factory=dict)  # by start


class Symbolizer:
    """Resolves addresses; mappings are cached per process and symbols per file, both bounded.

    `cpu` is the CPU time that processes of a user may cost; beyond it their addresses stay without
    names for a while. `refused_files` counts files that could not be read.
    """

    def __init__(self, read_again_s: float = _READ_AGAIN_S) -> None:
        self.read_again_s = read_again_s
        self.cpu = UserBudget(CPU_PER_S, CPU_BURST_S)
        self.refused_files = 0
        self._processes: dict[int, _Mapped] = {}
        self._tables: dict[FileId, FunctionTable | None] = {}

    def forget(self, pid: int) -> None:
        """Drop what is cached of a process, after exec, dlopen or its end."""
        self._processes.pop(pid, None)

    def resolve(self, pid: int, addresses: Iterable[int]) -> list[NativeFrame]:
        """Return one frame per address.

        An address outside the known mappings reads them again, but not every time: compiled kernels
        and broken frame chains are in no file at all.
        """
        wanted = list(addresses)
        process = self._processes.get(pid)
        is_old = process is None or time.monotonic() - process.read_s >= self.read_again_s
        if process is None or (
            is_old and any(_region_of(process.regions, address) is None for address in wanted)
        ):
            process = self._read(pid, process)
        return [self._frame(pid, process, address) for address in wanted]

    def _frame(self, pid: int, process: _Mapped, address: int) -> NativeFrame:
        region = _region_of(process.regions, address)
        if region is None:
            return NativeFrame(address, None, 0, None)
        table = self._table(pid, process, region)
        found = table.find(address - region.start + region.offset) if table else None
        symbol, distance = found or (None, 0)
        return NativeFrame(address, symbol, distance, region.path)

    def _table(self, pid: int, process: _Mapped, region: Region) -> FunctionTable | None:
        if region.start not in process.files:
            process.files[region.start] = _identify(pid, region)
        file = process.files[region.start]
        if file is None:
            return None
        if file not in self._tables:
            uid = user_of(pid)
            if not self.cpu.allows(uid, time.monotonic()):
                return None
            if len(self._tables) >= _CACHED_FILES or self._cached_bytes() >= _CACHED_BYTES:
                self._tables.clear()
            with self.cpu.cpu_of(uid):
                self._tables[file] = self._read_table(openable(pid, region), file)
        return self._tables[file]

    def _read_table(self, path: str | None, file: FileId) -> FunctionTable | None:
        try:
            return FunctionTable(path, file) if path else None
        except (OSError, ForeignFile):
            self.refused_files += 1
            return None  # kept, so that the file is not opened for every frame

    def _cached_bytes(self) -> int:
        return sum(table.size_bytes for table in self._tables.values() if table)

    def _read(self, pid: int, before: _Mapped | None) -> _Mapped:
        uid = user_of(pid)
        if not self.cpu.allows(uid, time.monotonic()):
            return before or _Mapped([], time.monotonic())
        with self.cpu.cpu_of(uid):
            regions = [region for region in find_regions(pid) if region.is_code]
        # the process is gone: its known addresses are still valid
        if before is not None and not regions:
            return before
        if len(self._processes) >= _CACHED_PROCESSES:
            self._processes.clear()
        self._processes[pid] = _Mapped(regions, time.monotonic())
        return self._processes[pid]


def _identify(pid: int, region: Region) -> FileId | None:
    path = openable(pid, region)
    try:
        return identify(path) if path else None
    except OSError:
        return None


def _region_of(regions: list[Region], address: int) -> Region | None:
    index = bisect.bisect_right(regions, address, key=lambda region: region.start) - 1
    return regions[index] if index >= 0 and address < regions[index].end else None
