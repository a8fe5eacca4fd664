"""Writes small or sparse ELF files by hand, with any number of sections."""

import struct
from dataclasses import dataclass
from pathlib import Path

HEADER_BYTES, SECTION_BYTES = 64, 64


@dataclass(frozen=True, slots=True)
class Part:
    """A section: its kind, its bytes at the start, and its whole size where the rest is a hole."""

    kind: int
    content: bytes = b""
    size: int | None = None
    link: int = 0


def symbol(
    name: int, *, info: int = 0x12, section: int = 1, value: int = 0, size: int = 4
) -> bytes:
    """Return one row of a symbol table."""
    return struct.pack("<IBBHQQ", name, info, 0, section, value, 4)


def write_elf(path: Path, parts: list[Part], segments: int = 1) -> Path:
    """Write an ELF file for x86-64 whose last section holds the names of the sections."""
    parts = [Part(0), *parts, Part(3, b"\0")]
    at = HEADER_BYTES + 56 * segments
    sections_at, rows = at, []
    at += SECTION_BYTES * len(parts)
    with path.open("wb") as file:
        for part in parts:
            size = len(part.content) if part.size is None else part.size
            rows.append(
                struct.pack("<IIQQQQIIQQ", 0, part.kind, 6, 0, at, size, part.link, 0, 1, 0)
            )
            file.seek(at)
            file.write(part.content)
            at += size
        file.truncate(at)
        file.seek(0)
        file.write(b"\x7fELF\x02\x01\x01".ljust(16, b"\0"))
        file.write(struct.pack("<HHIQQQ", 3, 62, 1, 0, HEADER_BYTES, sections_at))
        file.write(
            struct.pack("<IHHHHHH", 0, 64, 56, segments, SECTION_BYTES, len(parts), len(parts) - 1)
        )
        for _ in range(segments):
            file.write(struct.pack("<IIQQQQQQ", 1, 5, 0, 0, 0, at, at, 4096))
        file.write(b"".join(rows))
    return path
