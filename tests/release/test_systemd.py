"""The debs under a real systemd: docs/quickstart-binary.md as it is printed, restarts, watchdog.

`make e2e-systemd` runs it in a container without network; it needs root, podman, runc and nfpm.
"""

import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from pathlib import Path

import pytest
from release.packages import build_packages, nfpm
from release.wheels import build_wheel
from tests.support.quickstarts import commands

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(2400),
    pytest.mark.skipif(
        os.environ.get("INGERO_TEST_SYSTEMD") != "1",
        reason="boots a systemd in a container: `make e2e-systemd`",
    ),
]
ROOT = Path(__file__).parents[2]
PEERS = Path(os.environ.get("INGERO_PEERS") or Path.home() / ".cache/ingero/peers")
PODMAN = ("podman", "--runtime", "runc", "--cgroup-manager=cgroupfs")
LIMITS = ("--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096", "--network", "none")
RIGHTS = ("--cap-add=SYS_ADMIN,BPF,PERFMON,SYS_PTRACE", "--security-opt", "seccomp=unconfined")
NAME = "ingero-test-systemd"
PATIENCE_S = 180.0
NOT_SURE = 3  # exit status of `ingero status` with one node


def inside(*command: str, allowed: tuple[int, ...] = (0,)) -> str:
    """Run a command in the container; return what it printed."""
    done = subprocess.run(
        [*PODMAN, "exec", NAME, *command], capture_output=True, text=True, check=False
    )
    assert done.returncode in allowed, f"{command}: {done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def until(condition: Callable[[], bool]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end_s, inside("journalctl", "--no-pager", "-n", "60")
        time.sleep(1.0)  # systemd tells nobody outside


def shown(unit: str, *names: str) -> list[str]:
    return inside("systemctl", "show", "--value", *(f"-p{n}" for n in names), unit).split("\n")


@pytest.fixture(scope="module")
def debs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    for program in ("podman", "runc", "mmdebstrap"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed: `make peers-images`")
    if built := os.environ.get("INGERO_TEST_DIST"):
        return sorted(Path(built).glob("*_amd64.deb"))
    if nfpm() is None:
        pytest.skip("nfpm is not installed: `make peers-charts`")
    folder = tmp_path_factory.mktemp("packages")
    wheel = build_wheel(folder / "wheel")
    made = build_packages(wheel, version("ingero"), folder / "out", "x86_64")
    return [path for path in made if path.suffix == ".deb"]


@pytest.fixture(scope="module")
def machine(debs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A booted Debian with the packages in /root, where commands run; yield its root."""
    subprocess.run([ROOT / "release" / "systemd_root.sh", PEERS / "systemd.tar"], check=True)
    root = tmp_path_factory.mktemp("root")
    subprocess.run(["tar", "-xf", PEERS / "systemd.tar", "-C", root], check=True)
    for deb in debs:
        shutil.copy(deb, root)
    command = [*PODMAN, "run", "--detach", "--name", NAME, "--systemd=always", *LIMITS, *RIGHTS]
    command += ["--add-host", "fleet.example:127.0.0.1", "--rootfs", str(root), "/sbin/init"]
    try:
        subprocess.run(command, check=True, capture_output=True)
        until(lambda: "running" in inside("systemctl", "is-system-running", allowed=(0, 1)))
        yield root
    finally:
        subprocess.run([*PODMAN, "rm", "--force", NAME], check=False, capture_output=True)
        shutil.rmtree(root, ignore_errors=True)


def test_f064_the_quickstart_works_as_it_is_printed(machine: Path) -> None:
    """Each command but those that fetch a wheel, which `make release-check` installs."""
    done = []
    for line in commands("binary"):
        words = line[1:] if line[0] == "sudo" else line
        if words[0].startswith("/opt/") or words[0] == "python3":
            continue
        allowed = (0, NOT_SURE) if words[-1] == "status" else (0,)
        told = inside(*words, allowed=allowed)
        if "join https://" in told:
            code = next(word for word in told.split() if word.startswith("ij1_"))
            (machine / "code.txt").write_text(code)
            (machine / "code.txt").chmod(0o600)
        done.append(" ".join(words))
    assert len(done) >= 7
    assert "train-a: 1 " in told
    for unit in ("ingero-fleet", "ingero-agent"):
        assert shown(unit, "ActiveState")[0] == "active"
    assert "pusher    running" in inside("ingero", "agent", "--health")
    inside("ingero", "leave")
    assert shown("ingero-agent", "ActiveState")[0] == "inactive"


def test_echo_runs_in_its_sandbox_and_stops_when_told(machine: Path) -> None:
    inside("systemctl", "stop", "ingero-fleet")  # both have port 4317 as their usual one
    inside("sh", "-c", "dpkg --install /ingero-echo_*.deb")
    inside("systemctl", "start", "ingero-echo")
    inside("systemctl", "stop", "ingero-echo")
    assert shown("ingero-echo", "Result", "ExecMainStatus")[:2] == ["success", "0"]


def test_a_service_that_hangs_or_dies_is_started_again(machine: Path) -> None:
    inside("systemctl", "start", "ingero-fleet")
    for number, signal in enumerate(("KILL", "STOP"), 1):  # STOP: only the watchdog can tell
        inside("systemctl", "kill", "--kill-whom=main", f"--signal={signal}", "ingero-fleet")
        until(lambda: shown("ingero-fleet", "NRestarts")[0] == str(number))  # noqa: B023 - at once
        until(lambda: shown("ingero-fleet", "ActiveState")[0] == "active")


def test_nothing_is_left_when_the_packages_are_purged(machine: Path) -> None:
    inside("systemctl", "disable", "--now", "ingero-fleet")
    inside("rm", "-rf", "/etc/ingero-fleet", "/etc/ingero-echo")  # keys and codes are the owner's
    inside("dpkg", "--purge", "ingero-echo", "ingero")
    assert not (machine / "usr/lib/ingero").exists()
    assert inside("systemctl", "list-unit-files", "ingero*", allowed=(0, 1)).count("ingero") == 0
