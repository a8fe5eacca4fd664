"""deb and rpm: installed for real, run in an empty home, removed without a trace.

`make e2e-packages` runs it; it needs root, Debian 12 and nfpm. DIST=folder takes the packages of a
release instead of building them.
"""

import os
import re
import shutil
import subprocess
from importlib.metadata import version
from pathlib import Path

import pytest
from release.packages import build_packages, nfpm
from release.wheels import build_wheel

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        os.environ.get("INGERO_TEST_PACKAGES") != "1",
        reason="installs packages on this machine: `make e2e-packages`",
    ),
]
MACHINE = re.compile(r"amd64\.deb$|x86_64\.rpm$")
LEFT = ("/usr/lib/ingero", "/etc/ingero-fleet", "/usr/bin/ingero", "/usr/bin/ingero-fleet")


def run(*command: str, home: Path) -> str:
    environment = {"HOME": str(home), "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "LANG": "C.UTF-8"}
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    if nfpm() is None:
        pytest.skip("nfpm is not installed: `make peers-charts`")
    if shutil.which("dpkg") is None or os.geteuid() != 0:
        pytest.skip("needs Debian and root")
    if built := os.environ.get("INGERO_TEST_DIST"):
        return sorted(each for each in Path(built).iterdir() if MACHINE.search(each.name))
    folder = tmp_path_factory.mktemp("packages")
    wheel = build_wheel(folder / "wheel")
    return build_packages(wheel, version("ingero"), folder / "out", "x86_64")


def test_f101_packages_name_their_machine(packages: list[Path]) -> None:
    assert sorted(path.name for path in packages) == [
        "ingero-0.1.0-1.x86_64.rpm",
        "ingero-echo-0.1.0-1.x86_64.rpm",
        "ingero-echo_0.1.0_amd64.deb",
        "ingero_0.1.0_amd64.deb",
    ]


def test_the_deb_is_installed_runs_and_goes_without_a_trace(
    packages: list[Path], tmp_path: Path
) -> None:
    debs = {path.name.split("_")[0]: str(path) for path in packages if path.suffix == ".deb"}
    try:
        run("dpkg", "--install", debs["ingero"], debs["ingero-echo"], home=tmp_path)
        shown = run("ingero", "--version", home=tmp_path)
        assert "compiled parts: codecs, fast path" in shown
        assert "ingero-echo" in run("ingero-echo", "--version", home=tmp_path)
        units = [f"/usr/lib/systemd/system/ingero-{name}.service" for name in ("agent", "fleet")]
        assert "ingero" not in run("systemd-analyze", "verify", *units, home=tmp_path)
        assert run("man", "-w", "ingero-blame", home=tmp_path)
        run("ingero", "export", "--help", home=tmp_path)
        told = run("ingero", "demo", home=tmp_path)
        assert "rank 19 on gpu-node-03 is slow" in told
        run("bash", "-c", "source /usr/share/bash-completion/completions/ingero", home=tmp_path)
        assert "ingero:" in run("getent", "passwd", "ingero", home=tmp_path)
    finally:
        subprocess.run(["dpkg", "--purge", "ingero-echo", "ingero"], check=False)
    assert [path for path in LEFT if Path(path).exists()] == []
    assert "ingero:" not in Path("/etc/passwd").read_text()


def test_the_rpm_is_installed_runs_and_goes_without_a_trace(
    packages: list[Path], tmp_path: Path
) -> None:
    """With a database of packages of its own, which knows none of what Fedora would install first.

    So dependencies are read, not resolved.
    """
    if shutil.which("rpm") is None:
        pytest.skip("rpm is not installed: `apt-get install rpm`")
    rpms = {path.name.rsplit("-", 2)[0]: str(path) for path in packages if path.suffix == ".rpm"}
    needed = run("rpm", "--query", "--requires", "--package", rpms["ingero"], home=tmp_path)
    assert {"python3.11", "libstdc++"} <= set(needed.split())
    rpm = ("rpm", "--dbpath", str(tmp_path / "rpm"))
    try:
        run(*rpm, "--install", "--nodeps", rpms["ingero"], rpms["ingero-echo"], home=tmp_path)
        assert "compiled parts: codecs, fast path" in run("ingero", "--version", home=tmp_path)
        assert "ingero-echo" in run("ingero-echo", "--version", home=tmp_path)
        assert Path("/usr/share/zsh/site-functions/_ingero").exists()
        assert not run(
            *rpm, "--verify", "--nodeps", "--nogroup", "ingero", "ingero-echo", home=tmp_path
        )
        run("ingero", "check", "--help", home=tmp_path)
    finally:
        subprocess.run([*rpm, "--erase", "--nodeps", "ingero-echo", "ingero"], check=False)
        subprocess.run(["userdel", "ingero"], check=False)  # rpm keeps accounts
    assert not run(*rpm, "--query", "--all", home=tmp_path)
    assert [path for path in LEFT if Path(path).exists()] == []
