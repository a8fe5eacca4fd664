"""A virtual environment with the wheel and all that it depends on, for images and system packages.

Its packages are pinned. A Python of the system runs it, so it holds no interpreter of its own, and
what jobs import stays untouched.
"""

import platform
import shutil
import subprocess
import sys
import zipfile
from configparser import ConfigParser
from pathlib import Path

from release.tree import ROOT, build_environment

PACKAGES = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
# Some packages want another one on the first patch releases, and Debian 12 has 3.11.2: without
# this, what is installed would suit the Python of whoever builds.
OLDEST = f"{sys.version_info.major}.{sys.version_info.minor}.0"
SCRIPT = """#!{home}/bin/python3
import sys

from {module} import {name}

sys.exit({name}())
"""


def install(
    wheel: Path, extras: str, target: Path, home: str, architecture: str = "x86_64"
) -> Path:
    """Make an environment that will lie at `home`; return its folder of packages.

    `bin/python3` and `pyvenv.cfg` depend on where Python is: whoever ships it adds them.
    """
    shutil.rmtree(target, ignore_errors=True)
    packages = target / PACKAGES
    command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--target", str(packages)]
    command += ["--link-mode", "copy"]  # links would share what is edited below with uv's cache
    command += ["--constraint", str(ROOT / "requirements.lock"), "--only-binary", ":all:"]
    command += ["--python-platform", f"{architecture}-manylinux_2_28"]
    command += ["--python-version", OLDEST]
    command += [f"ingero{extras} @ {wheel.resolve().as_uri()}"]
    subprocess.run(command, env=build_environment(), check=True)
    for leftover in ("bin", "share", ".lock", ".gitignore"):
        path = packages / leftover
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    for folder in [*packages.rglob("__pycache__"), *packages.glob("numpy/**/tests")]:
        shutil.rmtree(folder, ignore_errors=True)
    for changing in ("uv_*", "direct_url.json", "REQUESTED"):  # these differ from build to build
        for file in packages.glob(f"*.dist-info/{changing}"):
            file.unlink()
    _forget_removed(packages)
    if architecture == platform.machine():  # `strip` knows the formats of this machine
        _remove_debugging(packages)
    _write_scripts(wheel, target / "bin", home)
    return packages


def _forget_removed(packages: Path) -> None:
    """Take what was removed out of the lists of files: they hold digests that differ, too."""
    for record in packages.glob("*.dist-info/RECORD"):
        lines = record.read_text().splitlines()
        kept = [line for line in lines if (packages / line.rsplit(",", 2)[0].strip('"')).exists()]
        record.write_text("\n".join([*kept, ""]))


def _remove_debugging(packages: Path) -> None:
    """Remove what only debuggers read from compiled modules: 20 MB.

    Libraries that wheels bring along were edited after linking, which strip does not survive. Ours
    have nothing to remove, and some are for another machine.
    """
    for module in packages.rglob("*.so"):
        folders = module.relative_to(packages).parts
        if folders[0] != "ingero" and not any(part.endswith(".libs") for part in folders):
            subprocess.run(["strip", "--strip-debug", str(module)], check=True)


def compile_all(target: Path, home: str) -> None:
    """Compile every module; the result depends on the sources alone, not on their times.

    A process of its own does it: compiled files also hold which texts the compiling process had
    interned before. Templates that are no modules do not compile, and are left.
    """
    command = [sys.executable, "-m", "compileall", "-qq", "-f", "-s", str(target), "-p", home]
    command += ["--invalidation-mode", "unchecked-hash", str(target)]
    subprocess.run(command, env=build_environment(), check=False)
    if not any(target.rglob("*.pyc")):
        raise SystemExit(f"nothing in {target} was compiled")


def add_python(target: Path, python: str) -> None:
    """Make the environment use a Python of the system."""
    (target / "bin" / "python3").symlink_to(python)
    folder = Path(python).parent
    (target / "pyvenv.cfg").write_text(f"home = {folder}\ninclude-system-site-packages = false\n")


def _write_scripts(wheel: Path, folder: Path, home: str) -> None:
    parser = ConfigParser()
    with zipfile.ZipFile(wheel) as archive:
        points = next(n for n in archive.namelist() if n.endswith("entry_points.txt"))
        parser.read_string(archive.read(points).decode())
    folder.mkdir()
    for script, target in parser["console_scripts"].items():
        module, name = target.split(":")
        path = folder / script
        path.write_text(SCRIPT.format(home=home, module=module, name=name))
        path.chmod(0o755)
