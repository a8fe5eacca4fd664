"""An environment for packages and images: nothing in it tells where or when it was made."""

import subprocess
import sys
from pathlib import Path

import pytest
from release.site import _forget_removed, compile_all

ROOT = Path(__file__).parents[2]


def test_removed_files_leave_no_digest_behind(tmp_path: Path) -> None:
    """The wheel's path is in direct_url.json, so its digest would differ from build to build."""
    about = tmp_path / "ingero-1.dist-info"
    about.mkdir()
    (tmp_path / "ingero").mkdir()
    (tmp_path / "ingero" / "a,b.py").touch()
    kept = ['"ingero/a,b.py",sha256=x,0', "ingero-1.dist-info/RECORD,,"]
    gone = ["ingero-1.dist-info/direct_url.json,sha256=y,9", "../../bin/ingero,sha256=z,1"]
    (about / "RECORD").write_text("\n".join([kept[0], *gone, kept[1], ""]))
    _forget_removed(tmp_path)
    assert (about / "RECORD").read_text().splitlines() == kept


def test_two_builds_compile_to_the_same_bytes(tmp_path: Path) -> None:
    """What is compiled holds which texts the compiling process had interned."""
    found = set()
    for number, before in enumerate(("", "sys.intern(chr(63)); ")):
        folder = tmp_path / str(number)
        folder.mkdir()
        (folder / "module.py").write_text("def f(x): return f'{x}?'\n")
        script = f"{before}compile_all(Path({str(folder)!r}), '/usr/lib/x')"
        command = [sys.executable, "-c", f"from release.site import *; {script}"]
        subprocess.run(command, cwd=ROOT, check=True)
        (compiled,) = folder.rglob("*.pyc")
        found.add(compiled.read_bytes())
    assert len(found) == 1
    assert b"/usr/lib/x/module.py" in found.pop()


def test_a_release_without_compiled_modules_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="was compiled"):
        compile_all(tmp_path, "/usr/lib/x")
