"""Kernel maps: create, read and write them, and mmap those that allow it."""

import ctypes
import errno
import functools
import mmap
import os
import struct
from dataclasses import dataclass
from typing import Final

from ingero.agent.ebpf.loader.syscalls import (
    MAP_CREATE,
    MAP_DELETE,
    MAP_FREEZE,
    MAP_LOOKUP,
    MAP_NEXT_KEY,
    MAP_UPDATE,
    BpfRefused,
    bpf,
    pinned,
)

ARRAY, PERCPU_ARRAY, RINGBUF = 2, 6, 27
READ_ONLY_PROGRAM: Final = 1 << 7


@functools.cache
def possible_cpus() -> int:
    """Return how many values a per-CPU map holds per key."""
    with open("/sys/devices/system/cpu/possible") as file:  # noqa: PTH123 - pathlib is slow to import
        ranges = file.read().strip().split(",")
    return max(int(part.rpartition("-")[2]) for part in ranges) + 1


@dataclass(frozen=True, slots=True)
class KernelMap:
    """One map; `close` releases its descriptor."""

    name: str
    descriptor: int
    kind: int
    key_size: int
    value_size: int
    max_entries: int

    def update(self, key: bytes, value: bytes) -> None:
        held_key, held_value = pinned(key), pinned(value)
        addresses = ctypes.addressof(held_key), ctypes.addressof(held_value)
        bpf(
            MAP_UPDATE,
            struct.pack("<IIQQQ", self.descriptor, 0, *addresses, 0),
            f"write to map {self.name}",
        )

    def lookup(self, key: bytes) -> bytes | None:
        """Return the value (for a per-CPU map: of every CPU), or None if there is no such key."""
        size = (
            self.value_size
            if self.kind != PERCPU_ARRAY
            else possible_cpus() * ((self.value_size + 7) & ~7)
        )
        held_key, held_value = pinned(key), ctypes.create_string_buffer(size)
        addresses = ctypes.addressof(held_key), ctypes.addressof(held_value)
        try:
            bpf(
                MAP_LOOKUP,
                struct.pack("<IIQQQ", self.descriptor, 0, *addresses, 0),
                f"read from map {self.name}",
            )
        except BpfRefused as refused:
            if refused.number == errno.ENOENT:
                return None
            raise
        return held_value.raw

    def delete(self, key: bytes) -> bool:
        """Delete a key; return False when it was not there."""
        held_key = pinned(key)
        attributes = struct.pack("<IIQQQ", self.descriptor, 0, ctypes.addressof(held_key), 0, 0)
        try:
            bpf(MAP_DELETE, attributes, f"remove a key of map {self.name}")
        except BpfRefused as refused:
            if refused.number == errno.ENOENT:
                return False
            raise
        return True

    def keys(self) -> list[bytes]:
        """Return all keys, at most as many as the map can hold."""
        found: list[bytes] = []
        held_key, next_key = (
            pinned(b"\0" * self.key_size),
            ctypes.create_string_buffer(self.key_size),
        )
        address = 0
        while len(found) < self.max_entries:
            attributes = struct.pack(
                "<IIQQQ", self.descriptor, 0, address, ctypes.addressof(next_key), 0
            )
            try:
                bpf(MAP_NEXT_KEY, attributes, f"walk map {self.name}")
            except BpfRefused as refused:
                if refused.number == errno.ENOENT:
                    break
                raise
            found.append(next_key.raw)
            held_key.raw = next_key.raw
            address = ctypes.addressof(held_key)
        return found

    def map_memory(self) -> mmap.mmap:
        """Map the values of an array into memory, so that a read needs no system call."""
        size = self.max_entries * ((self.value_size + 7) & ~7)
        return mmap.mmap(
            self.descriptor, (size + mmap.PAGESIZE - 1) & -mmap.PAGESIZE, mmap.MAP_SHARED
        )

    def close(self) -> None:
        os.close(self.descriptor)


def create_map(
    name: str,
    kind: int,
    *,
    key_size: int,
    value_size: int,
    max_entries: int,
    flags: int,
    types: tuple[int, int, int] = (0, 0, 0),
) -> KernelMap:
    """Create a map.

    `types` are the BTF descriptor and the types of key and value; task storage requires them.
    """
    sizes = (kind, key_size, value_size, max_entries, flags, 0, 0)
    attributes = struct.pack("<7I16sI4I", *sizes, name[:15].encode(), 0, *types, 0)
    descriptor, _ = bpf(MAP_CREATE, attributes, f"create map {name}")
    return KernelMap(name, descriptor, kind, key_size, value_size, max_entries)


def create_data_map(name: str, content: bytes, *, read_only: bool) -> KernelMap:
    """Create the map of a data section of an object.

    Constants are frozen, so that the verifier can rely on them.
    """
    flags = READ_ONLY_PROGRAM if read_only else 0
    made = create_map(
        name.strip("."), ARRAY, key_size=4, value_size=len(content), max_entries=1, flags=flags
    )
    made.update(bytes(4), content)
    if read_only:
        bpf(MAP_FREEZE, struct.pack("<I", made.descriptor), f"freeze map {name}")
    return made
