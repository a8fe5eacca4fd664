"""Prepares an NCCL for the GPU machine that allows several ranks on one GPU and is small.

    python tests/hardware/prepare_nccl.py [wheelhouse]

Fetches the wheel with pip, blanks the GPU code of every architecture but one (same size, same
addresses, so the library
still loads) and compresses it. The result works on GPUs of that architecture only.
"""

import argparse
import lzma
import struct
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

WHEEL = "nvidia-nccl-cu13==2.30.4"
PLATFORM = "manylinux_2_18_x86_64"
HOPPER = 90
CONTAINER_MAGIC = struct.pack("<I", 0xBA55ED50)  # opens every block of GPU code in a CUDA library
ELF_KIND, PTX_KIND = 2, 1
LIMIT_BYTES = 40 * 1024 * 1024


def blank_other_architectures(library: bytearray, keep: int) -> int:
    """Zero all GPU code but that of `keep`, in place; returns the bytes zeroed."""
    zeroed, at = 0, library.find(CONTAINER_MAGIC)
    while at >= 0:
        version, header_bytes, body_bytes = struct.unpack_from("<HHQ", library, at + 4)
        if version != 1 or header_bytes > 64 or body_bytes > len(library) - at:
            at = library.find(CONTAINER_MAGIC, at + 4)
            continue
        end = at + header_bytes + body_bytes
        zeroed += _blank_container(library, at + header_bytes, end, keep)
        at = library.find(CONTAINER_MAGIC, end)
    return zeroed


def _blank_container(library: bytearray, at: int, end: int, keep: int) -> int:
    zeroed = 0
    while at + 32 <= end:
        kind, _, header_bytes, body_bytes = struct.unpack_from("<HHIQ", library, at)
        (architecture,) = struct.unpack_from("<I", library, at + 28)
        if kind not in (PTX_KIND, ELF_KIND) or header_bytes < 32:
            break
        body = at + header_bytes
        if not (kind == ELF_KIND and architecture == keep):
            library[body : body + body_bytes] = bytes(body_bytes)
            zeroed += body_bytes
        at = body + body_bytes
    return zeroed


def fetch_library(wheel: str, folder: Path) -> bytearray:
    """libnccl.so.2 out of the wheel, by pip."""
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--no-deps",
        "--dest",
        str(folder),
    ]
    subprocess.run([*command, "--only-binary=:all:", f"--platform={PLATFORM}", wheel], check=True)
    with zipfile.ZipFile(next(folder.glob("*.whl"))) as archive:
        name = next(name for name in archive.namelist() if name.endswith("/libnccl.so.2"))
        return bytearray(archive.read(name))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, default=Path("wheelhouse"))
    parser.add_argument(
        "--architecture",
        type=int,
        default=HOPPER,
        help="compute capability to keep (90: H100, H200)",
    )
    parser.add_argument("--wheel", default=WHEEL)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        library = fetch_library(args.wheel, Path(scratch))
    zeroed = blank_other_architectures(library, args.architecture)
    packed = lzma.compress(library, preset=6)
    if len(packed) > LIMIT_BYTES:
        sys.exit(
            f"{len(packed):,} bytes after slimming: too large to carry; was the wheel's layout "
            f"changed?"
        )
    args.folder.mkdir(parents=True, exist_ok=True)
    target = args.folder / "libnccl.so.2.xz"
    target.write_bytes(packed)
    print(f"{target}: {len(packed):,} bytes ({len(library):,} unpacked, {zeroed:,} blanked)")


if __name__ == "__main__":
    main()
