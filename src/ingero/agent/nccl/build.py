"""Builds the NCCL plugin for both architectures with the pinned compiler: `make probes`.

Each library carries a digest of its sources, so that a test notices a stale one.
"""

import hashlib
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent
LIBRARY = "libnccl-profiler-ingero.so"
ARCHITECTURES = ("x86_64", "aarch64")
SOURCES = ("chain.c", "operations.c", "profiler.c", "ring.c")
HEADERS = ("interface.h", "plugin.h", "ring.h")
DIGEST_MARK = b"ingero-source:"
GLIBC = "2.17"  # the oldest glibc that a relevant NCCL runs on
FLAGS = (
    *(
        "-std=c11",
        "-O2",
        "-fPIC",
        "-shared",
        "-fvisibility=hidden",
        "-fno-sanitize=undefined",
        "-s",
    ),
    *("-Wall", "-Wextra", "-Wpedantic", "-Wshadow", "-Wconversion", "-Werror"),
    # NCCL unloads plugins with the last communicator, but a late call must still find the code
    *("-Wl,-z,nodelete", "-Wl,-z,relro", "-Wl,-z,now"),
)


def source_digest() -> str:
    """Return 32 hex digits of the SHA-256 of every source and the flags."""
    digest = hashlib.sha256("\0".join((GLIBC, *FLAGS)).encode())
    for name in (*SOURCES, *HEADERS):
        digest.update(name.encode() + b"\0" + (FOLDER / name).read_bytes())
    return digest.hexdigest()[:32]


def built_digest(library: Path) -> str:
    """Return the digest inside a built library, empty when there is none."""
    _, mark, rest = library.read_bytes().partition(DIGEST_MARK)
    return rest[:32].decode("ascii", "replace") if mark else ""


def build(architecture: str, folder: Path) -> Path:
    """Compile the plugin into `folder`/ARCHITECTURE."""
    target = folder / architecture / LIBRARY
    target.parent.mkdir(parents=True, exist_ok=True)
    command = [
        sys.executable,
        "-m",
        "ziglang",
        "cc",
        "-target",
        f"{architecture}-linux-gnu.{GLIBC}",
        *FLAGS,
    ]
    command += [
        f'-DSOURCE_DIGEST="{source_digest()}"',
        "-o",
        str(target),
        *(str(FOLDER / name) for name in SOURCES),
        "-ldl",  # part of libc since glibc 2.34
    ]
    subprocess.run(command, check=True)
    return target


def main() -> None:
    """Build the libraries that are shipped."""
    for architecture in ARCHITECTURES:
        target = build(architecture, FOLDER)
        sys.stdout.write(f"{target} {built_digest(target)}\n")


if __name__ == "__main__":
    main()
