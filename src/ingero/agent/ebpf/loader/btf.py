"""BTF, the type information of the kernel: field offsets, function ids, tracepoint signatures."""

import functools
import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from ingero.errors import ForeignFile

VMLINUX: Final = "/sys/kernel/btf/vmlinux"
INT, PTR, ARRAY, STRUCT, UNION, TYPEDEF, FUNC, FUNC_PROTO, VAR, DATASEC = (
    1,
    2,
    3,
    4,
    5,
    8,
    12,
    13,
    14,
    15,
)
_QUALIFIERS: Final = frozenset({8, 9, 10, 11, 18})  # typedef, volatile, const, restrict, type tag
# words after the three of the header: fixed, or per element
_FIXED: Final = {
    1: 1,
    2: 0,
    3: 3,
    7: 0,
    8: 0,
    9: 0,
    10: 0,
    11: 0,
    12: 0,
    14: 1,
    16: 0,
    17: 1,
    18: 0,
}
_PER_ELEMENT: Final = {4: 3, 5: 3, 6: 2, 13: 2, 15: 3, 19: 3}
_BITS: Final = 8
_TYPE_BYTES: Final = 12
_MAX_HOPS: Final = 64  # of typedefs and qualifiers in a row
_MAX_SEARCHED: Final = 256  # anonymous structs inside each other


@dataclass(frozen=True, slots=True)
class Type:
    name: str
    kind: int
    elements: int
    size: int  # or the type referred to
    at: int  # byte position of what follows the header


class Btf:
    """One block of BTF; `raw` may be patched in place.

    Damaged BTF raises ForeignFile, here or where the damage is met.
    """

    def __init__(self, raw: bytes) -> None:
        self.raw = bytearray(raw)
        try:
            magic, _, _, header, types_at, types_size, strings_at, _ = struct.unpack_from(
                "<HBBIIIII", raw
            )
            if magic != 0xEB9F:
                raise ForeignFile("not BTF")
            self._strings = header + strings_at
            self._start = header + types_at
            words = memoryview(raw)[self._start : self._start + types_size].cast("I")
            self.positions = self._walk(words)
        except (struct.error, IndexError, TypeError) as error:
            raise ForeignFile(f"damaged BTF: {error}") from None

    def _walk(self, words: memoryview) -> list[int]:
        """Return the word position of every type; number 0 is void.

        The kernel has about 150,000 types, so this loop decides the start-up time.
        """
        steps = [0] * 32
        per = [0] * 32
        for kind, extra in _FIXED.items():
            steps[kind] = 3 + extra
        for kind, extra in _PER_ELEMENT.items():
            steps[kind], per[kind] = 3, extra
        positions, self._names, self._infos = [0], [0], [0]
        at, end = 0, len(words)
        add_position, add_name, add_info = positions.append, self._names.append, self._infos.append
        while at < end:
            info = words[at + 1]
            kind = info >> 24 & 31
            if not steps[kind]:
                raise ForeignFile(f"BTF holds a type of unknown kind {kind}")
            add_position(at)
            add_name(words[at])
            add_info(kind)
            at += steps[kind] + per[kind] * (info & 0xFFFF)
        return positions

    def __len__(self) -> int:
        return len(self.positions)

    def text(self, offset: int) -> str:
        start = self._strings + offset
        end = self.raw.find(0, start)
        if end < 0:
            raise ForeignFile(f"damaged BTF: no name at {offset}")
        return self.raw[start:end].decode(errors="replace")

    def type(self, number: int) -> Type:
        if not number:
            return Type("", 0, 0, 0, len(self.raw))
        if not 0 < number < len(self.positions):
            raise ForeignFile(f"damaged BTF: no type {number}")
        at = self._start + 4 * self.positions[number]
        if at + _TYPE_BYTES > len(self.raw):
            raise ForeignFile(f"damaged BTF: type {number} is cut off")
        name, info, size = struct.unpack_from("<III", self.raw, at)
        return Type(self.text(name), info >> 24 & 31, info & 0xFFFF, size, at + 12)

    def resolve(self, number: int) -> int:
        """Follow typedefs and qualifiers to the type itself."""
        for _ in range(_MAX_HOPS):
            if not number:
                return 0
            described = self.type(number)
            if described.kind not in _QUALIFIERS:
                return number
            number = described.size
        raise ForeignFile(f"damaged BTF: type {number} refers to itself")

    def find(self, names: Iterable[str], kind: int) -> dict[str, int]:
        """Return type numbers by name; unknown names are left out."""
        found: dict[str, int] = {}
        for name in names:
            at = self.raw.find(b"\0" + name.encode() + b"\0", self._strings - 1)
            number = self._number(at + 1 - self._strings, kind) if at >= 0 else None
            if number is not None:
                found[name] = number
        return found

    def _number(self, name: int, kind: int) -> int | None:
        """Return the type whose name is at this position in the string table.

        A scan at C speed is far cheaper than an index for a few names.
        """
        number = 0
        try:
            while True:
                number = self._names.index(name, number + 1)
                if self._infos[number] == kind:
                    return number
        except ValueError:
            return None

    def members(self, number: int) -> list[tuple[str, int, int]]:
        """Return (name, type, bit offset) of each member of a struct or union."""
        described = self.type(number)
        rows = self._rows("<III", described)
        return [(self.text(name), kind, offset & 0xFFFFFF) for name, kind, offset in rows]

    def _rows(self, layout: str, described: Type) -> Iterator[tuple[int, ...]]:
        """Return what follows the header of a type, one row per element."""
        size = struct.calcsize(layout) * described.elements
        data = self.raw[described.at : described.at + size]
        if len(data) < size:
            raise ForeignFile(f"damaged BTF: type {described.name} is cut off")
        return struct.iter_unpack(layout, data)

    def offset_of(self, struct_number: int, field: str) -> int | None:
        """Return the byte offset of a field, or None.

        Anonymous members are searched too; dots step into named ones.
        """
        head, _, rest = field.partition(".")
        found = self._find_member(struct_number, head, set())
        if found is None or not rest:
            return None if found is None else found[0]
        deeper = self.offset_of(found[1], rest)
        return None if deeper is None else found[0] + deeper

    def _find_member(
        self, struct_number: int, name: str, searched: set[int]
    ) -> tuple[int, int] | None:
        """Return byte offset and type of a member, each struct searched once."""
        searched.add(struct_number)
        if len(searched) > _MAX_SEARCHED:
            raise ForeignFile(f"damaged BTF: more than {_MAX_SEARCHED} structs inside each other")
        for member, kind, bits in self.members(struct_number):
            inner = self.resolve(kind)
            if member == name:
                return bits // _BITS, inner
            if not member and inner not in searched and self._infos[inner] in (STRUCT, UNION):
                found = self._find_member(inner, name, searched)
                if found is not None:
                    return bits // _BITS + found[0], found[1]
        return None

    def parameters(self, tracepoint: str) -> list[int] | None:
        """Return the argument types of a raw tracepoint, or None if the kernel lacks it."""
        number = self.find([f"btf_trace_{tracepoint}"], TYPEDEF).get(f"btf_trace_{tracepoint}")
        if number is None:
            return None
        prototype = self.type(self.type(self.type(number).size).size)
        rows = self._rows("<II", prototype)
        return [kind for _, kind in rows][1:]  # the first is the probe's own data pointer

    def kind_of(self, number: int) -> int:
        return self._infos[self.resolve(number)]


@functools.cache
def kernel_btf() -> Btf | None:
    """Return the BTF of the running kernel; None when it was built without."""
    try:
        with open(VMLINUX, "rb") as file:  # noqa: PTH123 - pathlib is slow to import
            return Btf(file.read())
    except OSError:
        return None
