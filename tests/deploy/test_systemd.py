"""Units that systemd accepts without a remark, and whose sandbox it rates as safe."""

import shutil
import subprocess
from pathlib import Path

import pytest

UNITS = Path(__file__).parents[2] / "deploy" / "systemd"
SERVICES = ("agent", "echo", "fleet")


def analyze(*arguments: str) -> str:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("systemd-analyze is not installed")
    done = subprocess.run(
        [program, *arguments], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stderr


@pytest.mark.parametrize("service", SERVICES)
def test_units_are_accepted_without_a_remark(service: str, tmp_path: Path) -> None:
    text = (UNITS / f"ingero-{service}.service").read_text()
    program = "/usr/bin/ingero" if service == "agent" else f"/usr/bin/ingero-{service}"
    assert f"ExecStart={program} " in text
    lines = text.replace(program, "/bin/true").splitlines()
    unit = tmp_path / f"ingero-{service}.service"  # neither program nor man page is installed here
    unit.write_text("\n".join(line for line in lines if not line.startswith("Documentation=")))
    assert analyze("verify", str(unit)) == ""


@pytest.mark.parametrize("service", ["fleet", "echo"])
def test_the_sandbox_of_services_is_rated_two_or_better(service: str) -> None:
    unit = UNITS / f"ingero-{service}.service"
    analyze("security", "--offline=true", "--threshold=20", str(unit))


@pytest.mark.parametrize("service", SERVICES)
def test_units_wait_for_readiness_and_are_watched(service: str) -> None:
    lines = (UNITS / f"ingero-{service}.service").read_text().splitlines()
    assert "Type=notify" in lines
    assert any(line.startswith("WatchdogSec=") for line in lines)


def test_the_agent_keeps_few_capabilities() -> None:
    text = (UNITS / "ingero-agent.service").read_text()
    (line,) = [line for line in text.splitlines() if line.startswith("CapabilityBoundingSet=")]
    assert set(line.partition("=")[2].split()) == {
        *("CAP_BPF", "CAP_PERFMON", "CAP_SYS_PTRACE", "CAP_DAC_READ_SEARCH"),
        *("CAP_CHOWN", "CAP_FOWNER", "CAP_SETPCAP"),
    }


def test_the_account_can_be_created() -> None:
    program = shutil.which("systemd-sysusers")
    if program is None:
        pytest.skip("systemd-sysusers is not installed")
    command = [program, "--dry-run", str(UNITS / "ingero.sysusers")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
