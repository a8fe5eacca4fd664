"""`make bench-install`: how much disk the wheel and what it depends on take, without and with Echo.

Each set is installed from the wheel into an empty environment, as pip would do it, with bytecode.
"""

import subprocess
import sys
import tempfile
from pathlib import Path

from release.wheels import build_wheel

from bench.table import finish, judge, print_table

LIMITS_MB = {"": 150, "[echo]": 300}


def size_mb(folder: Path) -> float:
    """Return the bytes of a file or of all files in a folder, in MB of 10**6 bytes."""
    files = (f for f in (folder, *folder.rglob("*")) if f.is_file())
    return sum(f.lstat().st_size for f in files) / 1e6


def installed(wheel: Path, extra: str, folder: Path) -> Path:
    """Install the wheel with an extra into an empty environment; return its site-packages."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    command = ["-m", "uv", "pip", "install", "--quiet", "--compile-bytecode", "--python"]
    subprocess.run(
        [sys.executable, *command, folder / "bin" / "python", f"{wheel}{extra}"], check=True
    )
    return next(folder.glob("lib/python*/site-packages"))


def main() -> None:
    """Measure and judge."""
    with tempfile.TemporaryDirectory() as work:
        wheel = build_wheel(Path(work) / "wheel")
        sizes = {}
        for extra in LIMITS_MB:
            packages = installed(wheel, extra, Path(work) / (extra.strip("[]") or "base"))
            sizes[extra] = size_mb(packages)
            largest = sorted(((size_mb(f), f.name) for f in packages.iterdir()), reverse=True)[:8]
            rows = [(name, f"{size:.1f}") for size, name in largest]
            print_table(f"ingero{extra}: the largest parts", ("part", "MB"), rows)
    finish(
        judge(
            [
                (f"ingero{extra} ≤ {limit} MB", sizes[extra] <= limit, f"{sizes[extra]:.1f} MB")
                for extra, limit in LIMITS_MB.items()
            ]
        )
    )


if __name__ == "__main__":
    main()
