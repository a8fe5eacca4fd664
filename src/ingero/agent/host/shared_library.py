"""Builds the libraries that are shipped, for both architectures, with the pinned compiler.

Each library carries a digest of its sources, so that a test notices a stale one.
"""

import hashlib
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ARCHITECTURES = ("x86_64", "aarch64")
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


@dataclass(frozen=True, slots=True)
class SharedLibrary:
    """A library in C: its folder, file name, sources and headers."""

    folder: Path
    name: str
    sources: tuple[str, ...]
    headers: tuple[str, ...] = ()

    def source_digest(self) -> str:
        """Return 32 hex digits of the SHA-256 of every source and the flags."""
        digest = hashlib.sha256("\0".join((GLIBC, *FLAGS)).encode())
        for name in (*self.sources, *self.headers):
            digest.update(name.encode() + b"\0" + (self.folder / name).read_bytes())
        return digest.hexdigest()[:32]

    def path(self, architecture: str) -> Path:
        """Return the file that is shipped for an architecture."""
        return self.folder / architecture / self.name

    def build(self, architecture: str, folder: Path) -> Path:
        """Compile the library into `folder`/ARCHITECTURE."""
        target = folder / architecture / self.name
        target.parent.mkdir(parents=True, exist_ok=True)
        command = [
            sys.executable,
            "-m",
            "ziglang",
            "cc",
            "-target",
            f"{architecture}-linux-gnu.{GLIBC}",
            *FLAGS,
            f'-DSOURCE_DIGEST="{self.source_digest()}"',
            "-o",
            str(target),
            *(str(self.folder / name) for name in self.sources),
            "-ldl",  # part of libc since glibc 2.34
        ]
        subprocess.run(command, check=True)
        return target

    def build_all(self) -> None:
        """Build the libraries that are shipped."""
        for architecture in ARCHITECTURES:
            target = self.build(architecture, self.folder)
            sys.stdout.write(f"{target} {built_digest(target)}\n")


def built_digest(library: Path) -> str:
    """Return the digest inside a built library, empty when there is none."""
    _, mark, rest = library.read_bytes().partition(DIGEST_MARK)
    return rest[:32].decode("ascii", "replace") if mark else ""
