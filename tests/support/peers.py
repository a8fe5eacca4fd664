"""Programs of others that tests run beside ours; `make test` and `make peers` install them."""

import os
import shutil
from pathlib import Path

import pytest

FOLDER = Path(os.environ.get("INGERO_PEERS", Path.home() / ".cache/ingero/peers"))


def debian_program(name: str) -> str:
    """Return the path of a program from Debian, or skip the test where it is absent."""
    unpacked = FOLDER / "debian" / "usr" / "bin" / name
    found = shutil.which(name) or (str(unpacked) if unpacked.exists() else None)
    if found is None:
        pytest.skip(f"needs {name} from Debian, which `bench/peers/debian.sh` installs")
    return found
