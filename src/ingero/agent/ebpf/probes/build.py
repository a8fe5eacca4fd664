"""Builds the probe objects with the compiler of the `ziglang` wheel: `make probes`.

Each object carries a digest of its sources, so that a stale object is noticed, and no debug
sections except BTF.
"""

import hashlib
import struct
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

SOURCES: Final = Path(__file__).parent
TARGETS: Final = {"x86_64": "x86", "aarch64": "arm64"}
_DROPPED: Final = (
    ".debug",
    ".rel.debug",
    ".BTF.ext",
    ".rel.BTF",
    ".eh_frame",
    ".rel.eh_frame",
    ".llvm_addrsig",
)
_HEADER_SIZE, _ROW_SIZE = 64, 64


def source_digest() -> str:
    """Return a digest of every C file of the probes, file names included."""
    digest = hashlib.sha256()
    for path in sorted([*SOURCES.glob("*.h"), *SOURCES.glob("*.bpf.c")]):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def object_path(machine: str, folder: Path = SOURCES) -> Path:
    return folder / f"trace.{machine}.o"


def build(folder: Path = SOURCES) -> list[Path]:
    """Compile for both machines; return the objects that were written."""
    digest, made = source_digest(), []
    for machine, architecture in TARGETS.items():
        with tempfile.TemporaryDirectory() as work:
            raw = Path(work) / "trace.o"
            options = ["-target", "bpfel-freestanding", "-mcpu=v3", "-g", "-O2", "-Wall", "-Werror"]
            defines = [f"-D__TARGET_ARCH_{architecture}", f'-DSOURCE_DIGEST="{digest}"']
            command = [
                sys.executable,
                "-m",
                "ziglang",
                "cc",
                *options,
                *defines,
                f"-ffile-prefix-map={SOURCES}=.",
            ]
            subprocess.run(
                [*command, "-c", str(SOURCES / "trace.bpf.c"), "-o", str(raw)], check=True, cwd=work
            )
            path = object_path(machine, folder)
            path.write_bytes(slim(raw.read_bytes()))
            made.append(path)
    return made


def slim(data: bytes) -> bytes:
    """Return the object without debug sections; section numbers stay the same."""
    (table,) = struct.unpack_from("<Q", data, 40)
    count, names = struct.unpack_from("<HH", data, 60)
    rows = [
        list(struct.unpack_from("<IIQQQQIIQQ", data, table + _ROW_SIZE * index))
        for index in range(count)
    ]
    strings_at = rows[names][4]
    out = bytearray(data[:_HEADER_SIZE])
    for row in rows:
        start = strings_at + row[0]
        name = data[start : data.index(b"\0", start)].decode()
        if name.startswith(_DROPPED):
            row[1:] = [0] * 9
        elif row[5] and row[1] != 8:
            content = data[row[4] : row[4] + row[5]]
            out += bytes(-len(out) % 16)
            row[4] = len(out)
            out += content
    out += bytes(-len(out) % 16)
    struct.pack_into("<Q", out, 40, len(out))
    for row in rows:
        out += struct.pack("<IIQQQQIIQQ", *row)
    return bytes(out)


if __name__ == "__main__":
    for written in build(Path(sys.argv[1]) if len(sys.argv) > 1 else SOURCES):
        sys.stdout.write(f"{written} {written.stat().st_size} bytes\n")
