"""Probes on kernels that other people run: Debian's, booted in an emulator.

`make e2e-kernels` runs it. Nothing is shared with this machine's kernel, and no right is needed.
"""

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from release.wheels import build_wheel
from tests.support import guest
from tests.support.virtual_machine import MACHINES, boot, write_root

from release import site

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(2400),
    pytest.mark.skipif(
        os.environ.get("INGERO_TEST_KERNELS") != "1", reason="boots kernels: `make e2e-kernels`"
    ),
]
PEERS = Path(os.environ.get("INGERO_PEERS") or Path.home() / ".cache/ingero/peers")
ROOT = Path(__file__).parents[2]
TIMEOUT_S = 1200.0  # a busy machine emulates slowly
# what each machine's root file system is made from
BASES = {"amd64": PEERS / "base.tar", "arm64": PEERS / "aarch64"}
ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}


def booted(machine: str, folder: Path) -> dict[str, Any]:
    kernel, base = PEERS / "kernels" / machine, BASES[machine]
    for needed in (kernel, base):
        if not needed.exists():
            pytest.skip(f"{needed} is missing: `make peers-kernels`")
    if shutil.which(MACHINES[machine][0]) is None:
        pytest.skip(f"{MACHINES[machine][0]} is not installed: `make peers-kernels`")
    home = folder / "home"
    wheel = build_wheel(folder / "wheel", ARCHITECTURES[machine])
    site.install(wheel, "", home, guest.HOME, ARCHITECTURES[machine])
    (home / "bin" / "python3").symlink_to("/usr/bin/python3.11")
    (home / "pyvenv.cfg").write_text("home = /usr/bin\n")
    init = folder / "init"
    init.write_text(f"#!{guest.HOME}/bin/python3\n{Path(guest.__file__).read_text()}")
    root = folder / "root.cpio"
    write_root(root, base, home, init)
    return boot(machine, kernel, root, TIMEOUT_S)


def check(found: dict[str, Any]) -> None:
    print(f"{found['kernel']} ({found['machine']}): {found.get('groups')}")
    assert "error" not in found, found["error"]
    assert found["checks"]["probes"][0], found["checks"]["probes"]
    assert found["calls"] == guest.EXPECTED
    assert not any(found["losses"].values()), found["losses"]
    assert found["records"] >= sum(guest.EXPECTED.values())


def test_debian_amd64(tmp_path: Path) -> None:
    subprocess.run([ROOT / "release" / "base.sh", BASES["amd64"]], check=True)
    found = booted("amd64", tmp_path)
    check(found)
    assert all(on for on, _ in found["groups"].values()), found["groups"]


def test_debian_arm64(tmp_path: Path) -> None:
    found = booted("arm64", tmp_path)
    check(found)
    assert all(on for on, _ in found["groups"].values()), found["groups"]
