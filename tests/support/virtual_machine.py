"""Boots a kernel with a root file system in memory, in an emulator; the guest prints a result."""

import contextlib
import json
import os
import stat
import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Final

TRAILER: Final = "TRAILER!!!"
# of a Debian root: what a guest without packages, users and languages does not need
LEFT_OUT: Final = ("usr/share/", "var/", "boot/", "dev/", "proc/", "sys/", "tmp/", "run/")
MACHINES: Final = {
    "amd64": [
        "qemu-system-x86_64", "-cpu", "max",
        "-append", "console=ttyS0 panic=-1 no_timer_check loglevel=1",  # a busy host is no error
    ],
    "arm64": [
        "qemu-system-aarch64", "-machine", "virt", "-cpu", "cortex-a72",
        "-append", "console=ttyAMA0 panic=-1 loglevel=1",
    ],
}  # fmt: skip


class Archive:
    """Writes what the kernel unpacks into memory: the format `newc` of cpio."""

    def __init__(self, out: IO[bytes]) -> None:
        self._out, self._number = out, 0
        self._names: set[str] = set()

    def add(
        self, name: str, mode: int, data: bytes = b"", device: tuple[int, int] = (0, 0)
    ) -> None:
        """Add a file, after the folders above it; a name that is there already is left out."""
        name = name.strip("/")
        if name in self._names:
            return
        above = name.rpartition("/")[0]
        if above:
            self.add(above, stat.S_IFDIR | 0o755)
        self._names.add(name)
        self._write(name, mode, data, device)

    def _write(self, name: str, mode: int, data: bytes, device: tuple[int, int]) -> None:
        self._number += 1
        named = os.fsencode(name) + b"\0"
        fields = (self._number, mode, 0, 0, 1, 0, len(data), 0, 0, *device, len(named), 0)
        head = b"070701" + "".join(f"{field:08X}" for field in fields).encode()
        self._out.write(_padded(head + named))
        self._out.write(_padded(data))

    def close(self) -> None:
        """Write the end."""
        self._write(TRAILER, 0, b"", (0, 0))


def _padded(data: bytes) -> bytes:
    return data + b"\0" * (-len(data) % 4)


def _of_folder(root: Path) -> Iterator[tuple[str, int, bytes]]:
    for path in sorted(root.rglob("*")):
        name, mode = str(path.relative_to(root)), path.lstat().st_mode
        if stat.S_ISLNK(mode):
            yield name, mode, os.fsencode(path.readlink())
        elif stat.S_ISREG(mode):
            yield name, mode, path.read_bytes()


def _of_tar(file: Path) -> Iterator[tuple[str, int, bytes]]:
    with tarfile.open(file) as tar:
        for member in tar:
            name = member.name.removeprefix("./")
            if member.issym():
                yield name, stat.S_IFLNK | 0o777, member.linkname.encode()
            elif member.isreg() or member.islnk():
                content = tar.extractfile(member)
                assert content is not None
                yield name, stat.S_IFREG | member.mode, content.read()


def write_root(target: Path, base: Path, home: Path, init: Path) -> None:
    """Write a root file system: a Debian (tar or folder), our environment, the first process."""
    with target.open("wb") as out:
        archive = Archive(out)
        archive.add("dev", stat.S_IFDIR | 0o755)
        archive.add("dev/console", stat.S_IFCHR | 0o600, device=(5, 1))
        archive.add("dev/null", stat.S_IFCHR | 0o666, device=(1, 3))
        archive.add("dev/urandom", stat.S_IFCHR | 0o666, device=(1, 9))
        for name, mode, data in _of_tar(base) if base.is_file() else _of_folder(base):
            if not name.startswith(LEFT_OUT):
                archive.add(name, mode, data)
        for name, mode, data in _of_folder(home):
            archive.add(f"opt/ingero/{name}", mode, data)
        archive.add("init", stat.S_IFREG | 0o755, init.read_bytes())
        archive.close()


def boot(machine: str, kernel: Path, root: Path, timeout_s: float) -> dict[str, Any]:
    """Boot and wait for the power to go off; return what the guest printed."""
    command = [
        *MACHINES[machine], "-accel", "tcg", "-smp", "2", "-m", "2048", "-display", "none",
        "-serial", "stdio", "-monitor", "none", "-nic", "none", "-no-reboot",
        "-kernel", str(kernel), "-initrd", str(root),
    ]  # fmt: skip
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=timeout_s,
        check=False,
    )
    for line in done.stdout.splitlines():
        # a message of the kernel may be in the middle of one; the guest says it more than once
        with contextlib.suppress(json.JSONDecodeError):
            if line.startswith("RESULT "):
                found: dict[str, Any] = json.loads(line.removeprefix("RESULT "))
                return found
    raise AssertionError(f"the guest said nothing: {done.stdout[-3000:]}{done.stderr[-1000:]}")
