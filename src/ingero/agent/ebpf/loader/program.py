"""Probe objects: load what `make probes` built as maps and programs, without libbpf or a compiler.

Maps are created from the BTF of the object, constants are patched into .rodata, and programs are
loaded one by one: a refused program disables one feature and reports why.
"""

import ctypes
import os
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ingero.agent.ebpf.loader.btf import DATASEC, FUNC, INT, Btf, kernel_btf
from ingero.agent.ebpf.loader.elf import SHT_REL, SHT_SYMTAB, STT_FUNC, STT_SECTION, ElfFile, Symbol
from ingero.agent.ebpf.loader.maps import KernelMap, create_data_map, create_map
from ingero.agent.ebpf.loader.syscalls import BTF_LOAD, PROG_LOAD, BpfRefused, bpf, pinned
from ingero.errors import Unavailable

KPROBE, RAW_TRACEPOINT = 2, 17
_TASK_STORAGE: Final = 29
_RELOC_CALL: Final = 10
_MAP_BY_DESCRIPTOR, _MAP_VALUE, _KERNEL_FUNCTION = 1, 2, 2
_LOG_SIZE: Final = 1 << 18
_LICENSE: Final = b"Dual BSD/GPL\0"


@dataclass(frozen=True, slots=True)
class MapSpec:
    """A map as declared in the object."""

    name: str
    numbers: dict[str, int]
    key_type: int
    value_type: int


class ProbeObject:
    """One loaded object. `load` loads a program; `close` releases everything."""

    def __init__(
        self, path: str, constants: Mapping[str, bytes], map_sizes: Mapping[str, int] | None = None
    ) -> None:
        self._elf = ElfFile(path)
        self._symbols = list(self._elf.symbols(SHT_SYMTAB))
        self._by_name = {
            symbol.name: symbol for symbol in self._symbols if symbol.kind != STT_SECTION
        }
        self.maps: dict[str, KernelMap] = {}
        self._programs: list[int] = []
        self._btf_descriptor: int | None = None
        try:
            section = self._elf.section(".BTF")
            if section is None:
                raise Unavailable(f"{path} carries no BTF: rebuild it with `make probes`")
            self.btf = Btf(self._elf.content(section))
            self._fit_btf()
            self._btf_descriptor = self._load_btf()
            self._make_maps(map_sizes or {})
            self._make_data(constants)
        except BaseException:
            self.close()
            raise
        self._relocations = {
            section.info: self._elf.content(section)
            for section in self._elf.sections
            if section.kind == SHT_REL
        }

    def _fit_btf(self) -> None:
        """Adapt the BTF of the compiler to what the kernel accepts.

        Compilers leave section sizes at zero and list kernel functions in a section.
        """
        integer = next(
            n
            for n in range(1, len(self.btf))
            if self.btf.type(n).kind == INT and self.btf.type(n).size == 4
        )
        for number in range(1, len(self.btf)):
            described = self.btf.type(number)
            if described.kind != DATASEC:
                continue
            if described.name == ".ksyms":
                self._hide_kernel_functions(described.at, described.elements, integer)
                continue
            section = self._elf.section(described.name)
            struct.pack_into("<I", self.btf.raw, described.at - 4, section.size if section else 0)
            for index in range(described.elements):
                at = described.at + 12 * index
                variable = self.btf.type(struct.unpack_from("<I", self.btf.raw, at)[0]).name
                struct.pack_into("<I", self.btf.raw, at + 4, self._by_name[variable].value)

    def _hide_kernel_functions(self, at: int, elements: int, integer: int) -> None:
        """Replace the list of kernel functions with a struct of integers of the same length."""
        for index in range(elements):
            (function,) = struct.unpack_from("<I", self.btf.raw, at + 12 * index)
            self.btf.raw[self.btf.type(function).at - 12 + 4] = 0  # linkage: static
            struct.pack_into("<III", self.btf.raw, at + 12 * index, 0, integer, 0)
        struct.pack_into("<II", self.btf.raw, at - 8, 4 << 24 | elements, 4 * elements)

    def _load_btf(self) -> int:
        held, log = pinned(self.btf.raw), ctypes.create_string_buffer(1 << 16)
        addresses = ctypes.addressof(held), ctypes.addressof(log)
        try:
            return bpf(
                BTF_LOAD,
                struct.pack("<QQIII", *addresses, len(self.btf.raw), 1 << 16, 1),
                "load BTF",
            )[0]
        except BpfRefused as refused:
            tail = log.value.decode(errors="replace").strip().splitlines()[-1:]
            raise BpfRefused(refused.number, f"load BTF {tail}") from None

    def map_specs(self) -> list[MapSpec]:
        """Return the maps declared in the object, in order."""
        for number in range(1, len(self.btf)):
            described = self.btf.type(number)
            if described.kind == DATASEC and described.name == ".maps":
                rows = struct.iter_unpack(
                    "<III", self.btf.raw[described.at : described.at + 12 * described.elements]
                )
                return [self._map_spec(variable) for variable, _, _ in rows]
        return []

    def _map_spec(self, variable: int) -> MapSpec:
        described = self.btf.type(variable)
        numbers: dict[str, int] = {}
        types = {"key": 0, "value": 0}
        for name, kind, _ in self.btf.members(self.btf.resolve(described.size)):
            pointed = self.btf.type(self.btf.resolve(kind)).size
            if name in types:
                types[name] = pointed
                numbers[f"{name}_size"] = self.btf.type(self.btf.resolve(pointed)).size
            else:  # a pointer to an array: its length is the number
                array = self.btf.type(self.btf.resolve(pointed))
                numbers[name] = struct.unpack_from("<III", self.btf.raw, array.at)[2]
        return MapSpec(described.name, numbers, types["key"], types["value"])

    def _make_maps(self, map_sizes: Mapping[str, int]) -> None:
        for spec in self.map_specs():
            kind = spec.numbers["type"]
            with_types = kind == _TASK_STORAGE
            self.maps[spec.name] = create_map(
                spec.name,
                kind,
                key_size=spec.numbers.get("key_size", 0),
                value_size=spec.numbers.get("value_size", 0),
                max_entries=map_sizes.get(spec.name, spec.numbers.get("max_entries", 0)),
                flags=spec.numbers.get("map_flags", 0),
                types=(self._btf_descriptor or 0, spec.key_type, spec.value_type)
                if with_types
                else (0, 0, 0),
            )

    def _make_data(self, constants: Mapping[str, bytes]) -> None:
        for index, section in enumerate(self._elf.sections):
            if not section.size or not section.name.startswith((".rodata", ".data", ".bss")):
                continue
            content = bytearray(self._elf.content(section))
            for name, value in constants.items():
                symbol = self._by_name[name]
                if symbol.section == index:
                    if len(value) > symbol.size:
                        raise Unavailable(
                            f"constant {name} holds {symbol.size} bytes, not {len(value)}"
                        )
                    content[symbol.value : symbol.value + len(value)] = value
            read_only = section.name.startswith(".rodata")
            self.maps[section.name] = create_data_map(
                section.name, bytes(content), read_only=read_only
            )

    def programs(self) -> dict[str, str]:
        """Return the section name of every program in the object."""
        return {
            symbol.name: self._elf.sections[symbol.section].name
            for symbol in self._symbols
            if symbol.kind == STT_FUNC
        }

    def load(self, name: str, kind: int, attach_type: int = 0) -> int:
        """Load one program and return its descriptor.

        Raises BpfRefused with the end of the verifier's log.
        """
        symbol = self._by_name[name]
        code = self._linked(symbol)
        try:
            descriptor = _load_program(name, kind, code, attach_type)
        except BpfRefused:
            descriptor = _load_program(name, kind, code, attach_type, explain=True)
        self._programs.append(descriptor)
        return descriptor

    def _linked(self, symbol: Symbol) -> bytes:
        start, end = symbol.value, symbol.value + symbol.size
        code = bytearray(self._elf.content(self._elf.sections[symbol.section])[start:end])
        for offset, info in struct.iter_unpack("<QQ", self._relocations.get(symbol.section, b"")):
            if start <= offset < end:
                self._relocate(code, offset - start, self._symbols[info >> 32], info & 0xFFFFFFFF)
        return bytes(code)

    def _relocate(self, code: bytearray, at: int, target: Symbol, kind: int) -> None:
        if kind == _RELOC_CALL and target.section == 0:
            btf = kernel_btf()
            number = btf.find([target.name], FUNC).get(target.name) if btf else None
            if number is None:
                raise Unavailable(f"this kernel has no function {target.name}")
            code[at + 1] = code[at + 1] & 15 | _KERNEL_FUNCTION << 4
            struct.pack_into("<i", code, at + 4, number)
            return
        section = self._elf.sections[target.section].name
        if section == ".maps":
            name = next(
                s.name
                for s in self._by_name.values()
                if s.section == target.section and s.value == target.value
            )
            code[at + 1] = code[at + 1] & 15 | _MAP_BY_DESCRIPTOR << 4
            struct.pack_into("<i", code, at + 4, self.maps[name].descriptor)
            return
        (addend,) = struct.unpack_from("<i", code, at + 4)
        code[at + 1] = code[at + 1] & 15 | _MAP_VALUE << 4
        struct.pack_into("<i", code, at + 4, self.maps[section].descriptor)
        struct.pack_into("<i", code, at + 12, addend + target.value)

    def close(self) -> None:
        for descriptor in self._programs:
            os.close(descriptor)
        for kernel_map in self.maps.values():
            kernel_map.close()
        if self._btf_descriptor is not None:
            os.close(self._btf_descriptor)
        self._programs, self.maps, self._btf_descriptor = [], {}, None
        self._elf.close()


def _load_program(
    name: str, kind: int, code: bytes, attach_type: int, *, explain: bool = False
) -> int:
    held, license_text = pinned(code), pinned(_LICENSE)
    log = ctypes.create_string_buffer(_LOG_SIZE if explain else 1)
    wanted = (1, _LOG_SIZE, ctypes.addressof(log)) if explain else (0, 0, 0)
    addresses = ctypes.addressof(held), ctypes.addressof(license_text)
    attributes = struct.pack(
        "<IIQQIIQII16sII",
        kind,
        len(code) // 8,
        *addresses,
        *wanted,
        0,
        0,
        name[:15].encode(),
        0,
        attach_type,
    )
    try:
        return bpf(PROG_LOAD, attributes, f"load program {name}")[0]
    except BpfRefused as refused:
        lines = log.value.decode(errors="replace").strip().splitlines()
        tail = " | ".join(line for line in lines[-6:] if line and not line.startswith("processed"))
        raise BpfRefused(
            refused.number, f"load program {name}" + (f" ({tail[-600:]})" if tail else "")
        ) from None


# r0 = 0; exit
_EMPTY_PROGRAM: Final = struct.pack("<BBhi", 0xB7, 0, 0, 0) + struct.pack("<BBhi", 0x95, 0, 0, 0)


def load_empty_probe(attach_type: int) -> int:
    """Load a probe that does nothing, to see what the kernel allows."""
    return _load_program("feature_test", KPROBE, _EMPTY_PROGRAM, attach_type)
