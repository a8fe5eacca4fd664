"""Programs of others that tests run beside ours; `make test` and `make peers` install them."""

import os
import shutil
import socket
import subprocess
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


def debian_command(name: str) -> list[str]:
    """Return how to start a program from Debian that reads /usr/share, or skip the test.

    Where it was only unpacked, it gets the unpacked /usr/share in a mount namespace of its own.
    """
    program = debian_program(name)
    share = FOLDER / "debian" / "usr" / "share"
    if not program.startswith(str(FOLDER)):
        return [program]
    script = 'mount --bind "$0" /usr/share && exec "$@"'
    command = ["unshare", "--mount", "sh", "-c", script, str(share)]
    if subprocess.run([*command, "true"], capture_output=True, check=False).returncode:
        pytest.skip(f"{name} is only unpacked, and this user may not mount its folder")
    return [*command, program]


def free_port() -> int:
    """Return a port of loopback that nobody listens on now, for a program that cannot choose."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
