"""A folder with the wheel and all that it depends on, for images and system packages.

It can lie anywhere: the scripts find Python on the PATH, and the packages beside themselves.
"""

import compileall
import py_compile
import shutil
import subprocess
import sys
import zipfile
from configparser import ConfigParser
from pathlib import Path

from release.tree import ROOT, build_environment

SCRIPT = """#!/usr/bin/env python3
import os
import sys

root = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
sys.path[:0] = [path for path in (root, os.path.join(root, "echo")) if os.path.isdir(path)]
from {module} import {name}

sys.exit({name}())
"""


def install(wheel: Path, extras: str, target: Path, architecture: str = "x86_64") -> Path:
    """Install a wheel with pinned dependencies into an empty folder."""
    shutil.rmtree(target, ignore_errors=True)
    command = [sys.executable, "-m", "uv", "pip", "install", "--quiet", "--target", str(target)]
    command += ["--constraint", str(ROOT / "requirements.lock"), "--only-binary", ":all:"]
    command += ["--python-platform", f"{architecture}-manylinux_2_28"]
    command += [f"ingero{extras} @ {wheel.resolve().as_uri()}"]
    subprocess.run(command, env=build_environment(), check=True)
    for leftover in ("bin", "share", ".lock", ".gitignore"):
        path = target / leftover
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    for folder in [*target.rglob("__pycache__"), *target.rglob("tests")]:
        if folder.name == "__pycache__" or folder.parts[len(target.parts)] in ("numpy", "pyarrow"):
            shutil.rmtree(folder, ignore_errors=True)
    for installer in target.glob("*.dist-info/uv_*"):
        installer.unlink()
    for origin in target.glob("*.dist-info/direct_url.json"):
        origin.unlink()  # the folder of the wheel differs from build to build
    _write_scripts(wheel, target / "bin")
    return target


def compile_all(target: Path, shown_as: str) -> None:
    """Compile every module; the result depends on the sources alone, not on their times."""
    compileall.compile_dir(
        target,
        quiet=2,
        force=True,
        stripdir=str(target),
        prependdir=shown_as,
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )


def _write_scripts(wheel: Path, folder: Path) -> None:
    parser = ConfigParser()
    parser.optionxform = str  # type: ignore[assignment,method-assign] # names of scripts keep their case
    with zipfile.ZipFile(wheel) as archive:
        points = next(n for n in archive.namelist() if n.endswith("entry_points.txt"))
        parser.read_string(archive.read(points).decode())
    folder.mkdir()
    for script, target in parser["console_scripts"].items():
        module, name = target.split(":")
        path = folder / script
        path.write_text(SCRIPT.format(module=module, name=name))
        path.chmod(0o755)
