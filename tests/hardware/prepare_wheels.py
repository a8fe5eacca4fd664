"""Fetches the wheels for a machine that cannot install anything: `make wheelhouse`.

    python tests/hardware/prepare_wheels.py [wheelhouse]

Versions are those of requirements.lock. Everything together must fit beside libnccl.so.2.xz into
what can be carried.
"""

import argparse
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYTHON = "3.12"
PLATFORMS = ("manylinux2014_x86_64", "manylinux_2_17_x86_64", "manylinux_2_28_x86_64")
LIMIT_BYTES = 22 * 1024 * 1024
# what `ingero-fleet`, `ingero fleet-push` and `ingero status` import; numpy and torch are there
WHEELS = (
    *(
        "aiohappyeyeballs",
        "aiohttp",
        "aiosignal",
        "anyio",
        "attrs",
        "cffi",
        "click",
        "cryptography",
        "frozenlist",
        "grpcio",
        "h11",
        "httptools",
    ),
    *(
        "idna",
        "msgspec",
        "multidict",
        "nvidia-ml-py",
        "opentelemetry-proto",
        "propcache",
        "protobuf",
        "pycparser",
        "python-multipart",
        "pyyaml",
    ),
    *("starlette", "typing-extensions", "uvicorn", "yarl"),
)


def pinned(lock: str) -> list[str]:
    """`name==version` of every wheel, as locked."""
    versions = dict(re.findall(r"^([a-z0-9-]+)==([^ \\;]+)", lock, re.MULTILINE))
    return [f"{name}=={versions[name]}" for name in WHEELS if name in versions]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", nargs="?", type=Path, default=Path("wheelhouse"))
    folder = parser.parse_args().folder
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.glob("*.whl"):
        old.unlink()
    command = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--quiet",
        "--disable-pip-version-check",
        "--no-deps",
    ]
    command += [
        "--only-binary=:all:",
        f"--python-version={PYTHON}",
        *(f"--platform={each}" for each in PLATFORMS),
    ]
    subprocess.run(
        [*command, f"--dest={folder}", *pinned((ROOT / "requirements.lock").read_text())],
        check=True,
    )
    size = sum(wheel.stat().st_size for wheel in folder.glob("*.whl"))
    if size > LIMIT_BYTES:
        sys.exit(f"{size:,} bytes of wheels: too large to carry beside NCCL")
    print(f"{folder}: {len(list(folder.glob('*.whl')))} wheels, {size:,} bytes")


if __name__ == "__main__":
    main()
