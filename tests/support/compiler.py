"""The C compiler of the `ziglang` wheel, for programs and libraries that tests run."""

import subprocess
import sys
from pathlib import Path


def compile_c(source: Path, target: Path, *options: str) -> Path:
    """Compile a file with these options, and return the target."""
    compiler = [sys.executable, "-m", "ziglang", "cc"]
    subprocess.run([*compiler, "-o", str(target), str(source), *options], check=True)
    return target
