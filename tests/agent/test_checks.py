"""`ingero check`: each answer says what is missing, what it costs and what to do."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support.gpu_jobs import require_bpf

from ingero.agent import checks
from ingero.agent.checks import (
    check_amd,
    check_btf,
    check_kernel,
    check_probes,
    check_ptrace_scope,
    run_checks,
)
from ingero.agent.ebpf.loaded import Capability
from ingero.agent.ebpf.policy import CALL_LAYERS
from ingero.agent.ebpf.tracer import Tracer
from ingero.agent.host.privileges import missing_capabilities
from ingero.cli.dispatch import run
from ingero.errors import Unavailable


@pytest.mark.parametrize(
    ("release", "passed"),
    [("6.18.1", True), ("5.15.0-144-generic", True), ("5.14.9", False), ("4.18.0-553.el8", False)],
)
def test_kernel(release: str, passed: bool) -> None:
    check = check_kernel(release)
    assert check.passed is passed
    assert bool(check.recommendation) is not passed


def test_missing_types_cost_host_evidence(tmp_path: Path) -> None:
    check = check_btf(tmp_path / "vmlinux")
    assert (check.passed, check.optional) == (False, False)
    assert "preemption" in check.detail
    assert "CONFIG_DEBUG_INFO_BTF" in check.recommendation


@pytest.mark.parametrize(
    ("scope", "passed", "optional"),
    [("0", True, False), ("1", True, False), ("2", False, True), ("3", False, True)],
)
def test_ptrace_scope(tmp_path: Path, scope: str, passed: bool, optional: bool) -> None:
    (tmp_path / "scope").write_text(f"{scope}\n")
    check = check_ptrace_scope(tmp_path / "scope")
    assert (check.passed, check.optional) == (passed, optional)
    assert check_ptrace_scope(tmp_path / "absent").passed


@pytest.mark.parametrize(
    ("effective", "missing"),
    [
        ("000001ffffffffff", []),
        ("0000000000000000", ["CAP_BPF", "CAP_PERFMON", "CAP_SYS_PTRACE"]),
        ("000000c000080000", []),
        ("0000000000200000", ["CAP_SYS_PTRACE"]),
        ("0000008000080000", ["CAP_PERFMON"]),
    ],
)
def test_capabilities(tmp_path: Path, effective: str, missing: list[str]) -> None:
    (tmp_path / "status").write_text(f"Name:\tx\nCapEff:\t{effective}\n")
    assert missing_capabilities(tmp_path / "status") == missing


def test_every_failure_states_what_to_do(tmp_path: Path) -> None:
    own = run_checks()
    assert len(own) == 12
    failed = [check for check in own if not check.passed]
    failed += [check_kernel("4.18.0"), check_btf(tmp_path / "vmlinux")]  # of another machine
    assert [check for check in failed if not (check.detail and check.recommendation)] == []


def test_json_has_the_published_fields(capsys: pytest.CaptureFixture[str]) -> None:
    status = run(["check", "--json"])
    answer = json.loads(capsys.readouterr().out)
    assert status == (0 if answer["all_passed"] else 1)
    assert set(answer["checks"][0]) == {
        "name",
        "pass",
        "optional",
        "value",
        "detail",
        "recommendation",
    }
    assert answer["all_passed"] == all(
        check["pass"] or check["optional"] for check in answer["checks"]
    )


def test_text_names_every_check(capsys: pytest.CaptureFixture[str]) -> None:
    run(["check"])
    text = capsys.readouterr().out
    assert all(
        name in text for name in ("kernel", "privileges", "probes", "libcudart", "trace database")
    )


def test_amd_gpus_are_named_with_what_works_on_them(tmp_path: Path) -> None:
    assert check_amd(tmp_path) == []
    for card, vendor in (("card0", "0x10de"), ("card1", "0x1002"), ("card2", "0x1002")):
        device = tmp_path / card / "device"
        device.mkdir(parents=True)
        (device / "vendor").write_text(f"{vendor}\n")
    (found,) = check_amd(tmp_path)
    assert (found.name, found.passed, found.value, found.optional) == (
        "AMD GPU",
        False,
        "2 found",
        True,
    )
    assert "HIP calls, RCCL collectives" in found.detail


def test_a_filter_of_system_calls_is_named_where_capabilities_do_not_help(tmp_path: Path) -> None:
    status = tmp_path / "status"
    status.write_text("CapEff:\t000000c000080000\nSeccomp:\t2\n")
    assert "seccomp" in checks._advice_for_probes(status)
    status.write_text("CapEff:\t000000c000080000\nSeccomp:\t0\n")
    assert "seccomp" not in checks._advice_for_probes(status)


def test_probes_that_are_refused_by_a_filter_name_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refused:
        def __init__(self, _: object) -> None: ...

        def start(self) -> None:
            raise Unavailable("bpf() refused: Operation not permitted")

    monkeypatch.setattr("ingero.agent.ebpf.tracer.Tracer", Refused)
    monkeypatch.setattr(checks, "missing_capabilities", list)
    monkeypatch.setattr(checks, "is_filtered", lambda _: True)
    found = checks.check_probes()
    assert not found.passed
    assert "seccomp" in found.recommendation


REFUSES_BPF = """
import ctypes, os, struct, sys
number = {"x86_64": 321, "aarch64": 280}[os.uname().machine]
# load the number of the call; bpf(): not permitted; everything else: allowed
code = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x50001), (0x06, 0, 0, 0x7FFF0000)]
filters = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *line) for line in code))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(code), ctypes.addressof(filters)))
assert ctypes.CDLL(None).prctl(22, 2, program, 0, 0) == 0
os.execv(sys.executable, [sys.executable, "-m", "ingero", "check", "--json"])
"""


@pytest.mark.root
def test_a_real_filter_of_system_calls_is_named() -> None:
    """Capabilities are there, and bpf() is refused all the same, as in older containers."""
    require_bpf()
    done = subprocess.run(
        [sys.executable, "-c", REFUSES_BPF], capture_output=True, text=True, check=False
    )
    checks = {each["name"]: each for each in json.loads(done.stdout)["checks"]}
    assert checks["privileges"]["pass"]
    assert not checks["probes"]["pass"]
    assert "seccomp" in checks["probes"]["recommendation"], checks["probes"]
    assert done.returncode == 1


def test_host_probes_alone_are_not_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel whose verifier refuses the programs for calls: the others say nothing about jobs."""
    require_bpf()
    real = Tracer.capabilities

    def only_host(self: Tracer) -> list[Capability]:
        return [
            replace(one, on=False, detail="refused") if one.name in CALL_LAYERS else one
            for one in real(self)
        ]

    monkeypatch.setattr(Tracer, "capabilities", only_host)
    found = check_probes()
    assert not found.passed
    assert "no call of a job can be seen" in found.detail
    assert "scheduler" in found.value
