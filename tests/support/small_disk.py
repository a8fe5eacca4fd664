"""A small file system of its own, for tests of a full or read-only disk."""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def mounted(folder: Path, size: str, mode: str = "0700") -> Iterator[Path]:
    """Yield a folder on a tmpfs of this size; skip the test where nothing can be mounted."""
    if os.geteuid() != 0:
        pytest.skip("needs root to mount a small file system")
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size},mode={mode}", "tmpfs", folder]
    if subprocess.run(mount, check=False).returncode != 0:
        pytest.skip("this machine does not let us mount a tmpfs")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


def remount(folder: Path, *options: str) -> None:
    """Change the options of a mounted folder, such as `ro` or `size=8m`."""
    subprocess.run(["mount", "-o", ",".join(("remount", *options)), folder], check=True)
