"""Real inputs that live beside the checkout and are never committed."""

import tarfile
from pathlib import Path

import pytest

SHARED = Path(__file__).parents[3] / "shared"


def shared(relative: str) -> Path:
    """The path of a shared input; skips the test where the folder is absent."""
    path = SHARED / relative
    if not path.exists():
        pytest.skip(f"needs the real inputs in ../shared/{relative}, which are not on this machine")
    return path


def recorded_rings(recording: str, folder: Path) -> list[Path]:
    """The ring files of a recorded job such as `ddp/healthy`, unpacked into `folder`, by rank."""
    return unpack_rings(shared(f"data/nccl-jobs/{recording}.tar.xz"), folder)


def unpack_rings(path: Path, folder: Path) -> list[Path]:
    """The ring files of an archive, unpacked into `folder`, by rank."""
    with tarfile.open(path) as archive:
        archive.extractall(folder, filter="data")
    return sorted(path for path in folder.rglob("ingero-nccl-*") if path.is_file())
