"""What `make setup` installs is pinned by hash, the installer included."""

import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).parents[1]
MAKEFILE = (ROOT / "Makefile").read_text()


def test_the_installer_is_pinned_by_the_lock_file() -> None:
    """The recipe takes the lines of uv from the lock file, with their hashes."""
    program = re.search(r"awk '(.*?)' requirements\.lock", MAKEFILE)
    assert program is not None
    awk = ["awk", program[1].replace("$$", "$"), "requirements.lock"]
    chosen = subprocess.run(awk, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    first, *hashes = [line.removesuffix("\\").strip() for line in chosen.splitlines()]
    assert re.fullmatch(r"uv==[\d.]+", first)
    assert len(hashes) > 5
    assert all(re.fullmatch(r"--hash=sha256:[0-9a-f]{64}", each) for each in hashes)


def test_everything_that_make_downloads_needs_a_hash() -> None:
    lines = [line for line in MAKEFILE.splitlines() if re.search(r"pip (install|sync)\b", line)]
    assert len(lines) >= 4  # the installer, the lock file, ourselves, the fuzzer
    for line in lines:
        assert "--require-hashes" in line or line.rstrip().endswith(
            "--no-deps --no-build-isolation -e ."
        )


def test_the_fuzzer_is_pinned_with_hashes() -> None:
    folder = ROOT / "tests" / "fuzz"
    wanted = (folder / "requirements.in").read_text().strip()
    first, *hashes = (folder / "requirements.lock").read_text().splitlines()
    assert first == f"{wanted} \\"
    assert hashes and all("--hash=sha256:" in each for each in hashes)
