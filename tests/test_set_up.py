"""What `make setup` installs is pinned by hash, the installer included."""

import re
import subprocess
from pathlib import Path

import pytest

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


@pytest.mark.parametrize("installer", ["pip install", "pip sync"])
def test_everything_that_set_up_downloads_needs_a_hash(installer: str) -> None:
    recipe = MAKEFILE.partition("$(READY):")[2].partition("\n\n")[0]
    lines = [line for line in recipe.splitlines() if installer in line]
    assert lines
    for line in lines:
        assert "--require-hashes" in line or line.rstrip().endswith(
            "--no-deps --no-build-isolation -e ."
        )
