"""A man page per command, which man reads without a remark."""

import shutil
import subprocess
from pathlib import Path

import pytest
from release.manuals import write_manuals

from ingero.cli.command_list import COMMANDS, SCRIPTS


def test_every_command_has_a_page(tmp_path: Path) -> None:
    names = {path.stem for path in write_manuals(tmp_path)}
    assert names == {"ingero"} | {f"ingero-{name}" for name, *_ in COMMANDS} | set(dict(SCRIPTS))


def test_pages_are_read_without_a_remark(tmp_path: Path) -> None:
    groff = shutil.which("groff")
    if groff is None:
        pytest.skip("groff is not installed")
    pages = write_manuals(tmp_path)
    for page in pages:
        command = [groff, "-k", "-man", "-Tutf8", "-ww", str(page)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert done.stderr == "", page.name
        assert page.stem.upper() in done.stdout


def test_a_page_shows_options_and_examples(tmp_path: Path) -> None:
    write_manuals(tmp_path)
    text = (tmp_path / "base" / "ingero-blame.1").read_text().replace("\\-", "-")
    for part in (".SH OPTIONS", "--gpu-model", ".SH EXAMPLES", "ingero blame"):
        assert part in text
