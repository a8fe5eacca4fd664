"""`make test-aarch64`: tests of the wheel for aarch64 under qemu, with small and large pages.

The wheel is installed beside what it depends on, so what runs is the compiled code of that machine.
eBPF and the NCCL plugin are not run: qemu emulates a processor, not a kernel.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from release import wheels
from release.tree import ROOT, build_environment

CACHE = Path(os.environ.get("INGERO_PEERS") or Path.home() / ".cache/ingero/peers") / "aarch64"
PAGE_SIZES = (4096, 65536)
FOLDERS = ("tests/contract", "tests/core")
# What those tests import beside the wheel.
TEST_PACKAGES = ("hypothesis", "perfetto", "pytest", "pytest-asyncio", "pytest-timeout", "trustme")
# Few examples of each property, and no limit on time: all that runs here is the emulator.
PYTEST = ("-m", "pytest", "-rs", "-o", "timeout=0", "--hypothesis-profile=emulated")
FIRST_CASES = ("-p", "tests.support.first_cases")
CHECK = (
    "import mmap, platform; from ingero.compiled import describe_parts, missing_parts; "
    "print(f'{platform.machine()}, pages of {mmap.PAGESIZE} bytes, {describe_parts()}'); "
    "assert not missing_parts()"
)


def install(wheel: Path, folder: Path) -> None:
    """Install the wheel and what its tests need, for aarch64, pinned."""
    command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--target", str(folder)]
    command += ["--python-platform", "aarch64-manylinux_2_28", "--only-binary", ":all:"]
    command += ["--constraint", str(ROOT / "requirements.lock"), *TEST_PACKAGES]
    command += [f"ingero[echo,parquet] @ {wheel.resolve().as_uri()}"]
    subprocess.run(command, env=build_environment(), check=True)
    for source in (ROOT / "src").rglob("*.[hc]"):  # not in the wheel; tests compare with some
        shutil.copy(source, folder / source.relative_to(ROOT / "src"))


def run(packages: Path, page_size: int, arguments: list[str]) -> int:
    """Run Python for aarch64 with pages of one size; return its exit status."""
    emulator = ["qemu-aarch64-static", "-p", str(page_size), "-L", str(CACHE)]
    environment = os.environ | {"PYTHONPATH": str(packages), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [*emulator, str(CACHE / "usr/bin/python3.11"), *arguments]
    return subprocess.run(command, cwd=ROOT, env=environment, check=False).returncode


def main() -> None:
    """Build, install and test; exit with the first status that is not 0."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pages", type=int, choices=PAGE_SIZES, help="one size only")
    parser.add_argument("--wheel", type=Path, help="wheel to test; built if omitted")
    parser.add_argument(
        "--first-cases", action="store_true", help="of a test with parameters, the first case only"
    )
    parser.add_argument("tests", nargs="*", default=list(FOLDERS))
    arguments, options = parser.parse_known_args()
    options += FIRST_CASES if arguments.first_cases else ()
    with tempfile.TemporaryDirectory() as work:
        wheel = arguments.wheel or wheels.build_wheel(Path(work), "aarch64")
        packages = Path(work) / "packages"
        install(wheel, packages)
        for page_size in [arguments.pages] if arguments.pages else PAGE_SIZES:
            status = run(packages, page_size, ["-c", CHECK])
            tests = [*PYTEST, *options, *arguments.tests]
            if status := status or run(packages, page_size, tests):
                sys.exit(status)


if __name__ == "__main__":
    main()
