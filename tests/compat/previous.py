"""The version before this one: built from the commit in `BASE`, with the dependencies it pinned.

`BASE` is the last commit that was handed out before the work on the next version began; $BASE names
an older one. It is installed once, into an environment of its own that the cache keeps.
"""

import io
import os
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BASE = os.environ.get("BASE") or (Path(__file__).parent / "BASE").read_text().strip()


def previous_python() -> str:
    """Return the Python of an environment with the previous version; skip where it cannot be."""
    cache = Path(os.environ.get("INGERO_PEERS") or Path.home() / ".cache/ingero/peers")
    folder = cache / f"previous-{BASE[:12]}"
    python = folder / "bin" / "python"
    if not (folder / ".ready").exists():
        command = ["git", "archive", "--format=tar", BASE]
        packed = subprocess.run(command, cwd=ROOT, capture_output=True, check=False)
        if packed.returncode:
            pytest.skip(f"the history does not reach back to {BASE[:12]}, or there is no git")
        _install(packed.stdout, folder, python)
        (folder / ".ready").touch()
    return str(python)


def _install(packed: bytes, folder: Path, python: Path) -> None:
    with tempfile.TemporaryDirectory() as work:
        with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
            archive.extractall(f"{work}/tree", filter="data")
        build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps"]
        build += ["--no-build-isolation", "-w", work, f"{work}/tree"]
        subprocess.run(build, check=True)
        (wheel,) = Path(work).glob("*.whl")
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        install = [sys.executable, "-m", "uv", "pip", "install", "--quiet"]
        install += ["--python", str(python), "--constraint", f"{work}/tree/requirements.lock"]
        subprocess.run([*install, f"ingero[echo] @ {wheel.as_uri()}"], check=True)
