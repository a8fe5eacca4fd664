"""The plugin and its host under the thread, address and undefined-behaviour sanitizers."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from tests.support.nccl_jobs import HOST_SOURCE
from tests.support.waiting import PATIENCE_S

from ingero.agent.nccl.build import FOLDER, SOURCES

NEXT_SOURCE = HOST_SOURCE.with_name("nccl_next.c")

COMPILER = shutil.which("gcc") or shutil.which("clang")
# on some kernels the runtime finds room for its tables only in a fixed layout
LAYOUTS = [
    [],
    ["setarch", "-R"],
]
NO_ROOM = ("unexpected memory mapping", "errno: 12")
SCENARIOS = {
    "thread": ["threads", "together", "odd", "short", "stuck", "hung", "comms"],
    "address,undefined": ["basic", "threads", "odd", "fork", "short", "flood", "stuck", "comms"],
}


@pytest.fixture(scope="module", params=list(SCENARIOS))
def sanitized(request, tmp_path_factory):
    """The sanitizer, the host and the plugin built with it."""
    if COMPILER is None:
        pytest.skip("no gcc or clang on this machine: the sanitizers were not run")
    folder = tmp_path_factory.mktemp("sanitized")
    command = [
        COMPILER,
        "-std=c11",
        "-O1",
        "-g",
        "-fno-omit-frame-pointer",
        f"-fsanitize={request.param}",
    ]
    host, plugin, second = folder / "host", folder / "plugin.so", folder / "second.so"
    sources = [str(FOLDER / name) for name in SOURCES]
    for extra in (
        ["-o", str(host), str(HOST_SOURCE), "-ldl", "-lpthread"],
        ["-fPIC", "-shared", "-DPOOL=64", "-DPAIRS=64", "-o", str(plugin), *sources, "-ldl"],
        ["-fPIC", "-shared", "-o", str(second), str(NEXT_SOURCE)],
    ):
        built = subprocess.run([*command, *extra], check=False, capture_output=True, text=True)
        if built.returncode:
            pytest.skip(
                f"{COMPILER} has no {request.param} sanitizer here: {built.stderr.splitlines()[-1]}"
            )
    return request.param, host, plugin


def run(
    host: Path, plugin: Path, folder: Path, scenario: str, version: int, **chained: str
) -> subprocess.CompletedProcess[str]:
    # no leak check: what dlclose leaves mapped is meant to stay
    environment = {
        "PATH": os.environ["PATH"], "INGERO_NCCL_RING_DIR": str(folder),
        "TSAN_OPTIONS": "halt_on_error=1",
        "UBSAN_OPTIONS": "halt_on_error=1", "ASAN_OPTIONS": "detect_leaks=0",
    } | chained  # fmt: skip
    number = {
        "stuck": "8300",
        "flood": "20000",
        "comms": "1100",
        "together": "16",
        "threads": "500",
    }.get(scenario, "50")
    for layout in LAYOUTS[: 2 if shutil.which("setarch") else 1]:
        command = [*layout, str(host), str(plugin), str(version), scenario, number]
        done = subprocess.run(
            command,
            input="\n" * 8,
            env=environment,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        if not any(sign in done.stderr for sign in NO_ROOM):
            return done
    pytest.skip(f"the sanitizer finds no room for its tables here: {done.stderr.splitlines()[0]}")


def test_the_sanitizers_find_nothing(sanitized, tmp_path):
    sanitizer, host, plugin = sanitized
    for version in (4, 6):
        for scenario in SCENARIOS[sanitizer]:
            done = run(host, plugin, tmp_path, scenario, version)
            assert (scenario, done.returncode, done.stderr) == (scenario, 0, "")
            rings = list(tmp_path.iterdir())
            assert rings, "the plugin has recorded nothing"
            for ring in rings:
                ring.unlink()


@pytest.mark.parametrize("mode", ["", "tagged"])
def test_the_sanitizers_find_nothing_in_a_chain(sanitized, tmp_path, mode):
    """With so few pairs that most events have none."""
    _, host, plugin = sanitized
    rings, log = tmp_path / "rings", tmp_path / "log"
    rings.mkdir()
    chained = {
        "INGERO_NCCL_NEXT_PLUGIN": str(plugin.with_name("second.so")), "NEXT_MASK": "66",
        "EXPECT_NEXT": "66", "NEXT_MODE": mode, "NEXT_LOG": str(log),
    }  # fmt: skip
    for version in (4, 6):
        for scenario in ("basic", "threads", "stuck"):
            done = run(host, plugin, rings, scenario, version, **chained)
            assert (scenario, done.returncode, done.stderr) == (scenario, 0, "")
            assert scenario == "stuck" or "wrong 0" in log.read_text()
            for ring in rings.iterdir():
                ring.unlink()
