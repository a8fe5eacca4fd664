"""Fetches the wheels for a machine that cannot install anything: `make wheelhouse`.

    python tests/hardware/prepare_wheels.py [wheelhouse]

Versions are those of requirements.lock. Everything together must fit beside libnccl.so.2.xz into
what can be carried. The compiled parts are built for the Python of that machine, where one of that
version is found here, on the path or among those of pyenv; else they are left out, and real jobs do
not start there.
"""

import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PYTHON = "3.12"
PLATFORMS = ("manylinux2014_x86_64", "manylinux_2_17_x86_64", "manylinux_2_28_x86_64")
LIMIT_BYTES = 22 * 1024 * 1024
PARTS = ("contract/_native/codecs", "fleet/_native/fast_path")
# what `ingero-fleet`, `ingero fleet-push` and `ingero status` import; numpy and torch are there
WHEELS = (
    *(
        "aiohappyeyeballs",
        "aiohttp",
        "aiosignal",
        "anyio",
        "attrs",
        "click",
        "frozenlist",
        "grpcio",  # Fleet beside the replicas of inference.py listens for it
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
        "python-multipart",
        "pyyaml",
    ),
    *("starlette", "typing-extensions", "uvicorn", "yarl"),
)


def pinned(lock: str) -> list[str]:
    """`name==version` of every wheel, as locked."""
    versions = dict(re.findall(r"^([a-z0-9-]+)==([^ \\;]+)", lock, re.MULTILINE))
    return [f"{name}=={versions[name]}" for name in WHEELS if name in versions]


def pythons() -> list[str]:
    """Return programs that may be PYTHON: the one on the path, then those of pyenv."""
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    name = f"python{PYTHON}"
    return [name, *(str(each) for each in sorted(pyenv.glob(f"versions/*/bin/{name}")))]


def build_parts(folder: Path) -> str:
    """Compile what Cython generated (`make setup`) for PYTHON; returns a sentence about it."""
    ask = "import sysconfig as s; print(s.get_path('include'), s.get_config_var('EXT_SUFFIX'))"
    for program in pythons():
        try:
            asked = subprocess.check_output(
                [program, "-c", ask], text=True, stderr=subprocess.DEVNULL
            )
        except (OSError, subprocess.CalledProcessError):
            continue
        include, suffix = asked.split()
        break
    else:
        return f"compiled parts are left out: no python{PYTHON} here"
    for part in PARTS:
        source = ROOT / "src" / "ingero" / f"{part}.c"
        target = folder / f"{source.stem}{suffix}"
        options = ["-O2", "-g0", "-fPIC", "-shared", "-Wl,-s", f"-I{include}", f"-I{ROOT / 'src'}"]
        subprocess.run(["gcc", *options, str(source), "-o", str(target)], check=True)
    return f"compiled parts for Python {PYTHON}: {len(PARTS)}"


def commit() -> str:
    """The commit of this tree, for rows of a machine without git; says if files differ from it."""
    asked = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.check_output(asked, text=True).strip()


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
    print(build_parts(folder))
    (folder / "COMMIT").write_text(commit() + "\n")


if __name__ == "__main__":
    main()
