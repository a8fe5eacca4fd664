"""A clean copy of the tracked files, with the time of the last commit.

Every artefact is made from it.
"""

import os
import shutil
import subprocess
import tarfile
from pathlib import Path
from typing import IO

ROOT = Path(__file__).parents[1]


def commit_time() -> int:
    """Return $SOURCE_DATE_EPOCH, or the time of the last commit."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    return int(given or _git("log", "-1", "--format=%ct"))


def build_environment() -> dict[str, str]:
    """Return an environment in which two builds of one commit give the same bytes."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("CFLAGS", "LDFLAGS"))}
    return {**kept, "SOURCE_DATE_EPOCH": str(commit_time()), "PYTHONHASHSEED": "0", "LC_ALL": "C"}


def copy_tree(target: Path) -> Path:
    """Copy what git tracks, and what it would track, into an empty folder."""
    shutil.rmtree(target, ignore_errors=True)
    for name in _git("ls-files", "-co", "--exclude-standard", "-z").split("\0"):
        source = ROOT / name
        if name and source.is_file():
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target / name)
            os.utime(target / name, (commit_time(), commit_time()))
    commit = _git("rev-parse", "--short=12", "HEAD")
    (target / "src/ingero/build.txt").write_text(f"commit {commit}\n")
    return target


def write_tar(folder: Path, file: IO[bytes], prefix: str) -> None:
    """Write a tar of a folder: sorted, without owners, with one time."""

    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        info.mtime = commit_time()
        info.mode = 0o755 if info.isdir() or info.mode & 0o100 else 0o644
        return info

    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for path in sorted(folder.rglob("*"), key=os.fspath):
            name = f"{prefix}{path.relative_to(folder)}"
            archive.add(path, name, recursive=False, filter=plain)


def _git(*args: str) -> str:
    done = subprocess.run(["git", *args], cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout.strip()
