"""`make release-check`: installs wheels into an empty home without compiler and runs the demo."""

import subprocess
import sys
import tempfile
from pathlib import Path

from release import sums


def main() -> None:
    """Check the signature, then the wheel of this machine and the pure one."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "dist")
    if (folder / sums.SIGNATURE).exists():
        sums.verify(folder, folder / sums.SIGNERS)
        print("checksums and signature: fine")
    for pattern, parts in (("*x86_64.whl", "codecs, fast path"), ("*none-any.whl", "none")):
        check_wheel(next(folder.glob(pattern)), parts)


def check_wheel(wheel: Path, parts: str) -> None:
    """Install a wheel as a user without a compiler would, and run the demo from it."""
    with tempfile.TemporaryDirectory() as home:
        environment = {"HOME": home, "PATH": "/nonexistent", "LANG": "C.UTF-8"}
        subprocess.run([sys.executable, "-m", "venv", "--without-pip", f"{home}/venv"], check=True)
        command = [
            sys.executable,
            "-m",
            "uv",
            "pip",
            "install",
            "--quiet",
            "--only-binary",
            ":all:",
        ]
        subprocess.run([*command, "--python", f"{home}/venv/bin/python", str(wheel)], check=True)
        ingero = f"{home}/venv/bin/ingero"
        shown = _run([ingero, "--version"], environment)
        assert f"compiled parts: {parts}" in shown, shown
        assert "build: commit " in shown, shown
        told = _run([ingero, "demo"], environment)
        assert "rank 19" in told, told
        print(f"{wheel.name}: installed without a compiler, and the demo names rank 19")


def _run(command: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


if __name__ == "__main__":
    main()
