"""Checksums name every artefact, and only the holder of the key can have signed them (F100)."""

import shutil
import subprocess
from pathlib import Path

import pytest

from release import sums


@pytest.fixture
def key(tmp_path: Path) -> Path:
    if shutil.which("ssh-keygen") is None:
        pytest.skip("ssh-keygen is not installed")
    path = tmp_path / "key"
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path)]
    subprocess.run(command, check=True)
    return path


@pytest.fixture
def folder(tmp_path: Path, key: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "dist"
    folder.mkdir()
    (folder / "a.whl").write_bytes(b"wheel")
    (folder / "b.tgz").write_bytes(b"chart")
    monkeypatch.setenv("RELEASE_KEY", key.read_text())  # as a secret of the hosting service is
    sums.write_sums(folder)
    given = sums.release_key(tmp_path)
    assert given is not None
    sums.sign(folder, given)
    return folder


def test_f100_a_signed_release_verifies(folder: Path) -> None:
    sums.verify(folder, folder / sums.SIGNERS)
    listed = [line.split("  ")[1] for line in (folder / sums.SUMS).read_text().splitlines()]
    assert listed == ["a.whl", "b.tgz"]


@pytest.mark.parametrize(
    ("file", "content"),
    [("a.whl", b"changed"), ("c.whl", b"not listed"), (sums.SUMS, b"00  a.whl\n")],
)
def test_f100_a_changed_release_does_not(folder: Path, file: str, content: bytes) -> None:
    (folder / file).write_bytes(content)
    with pytest.raises(SystemExit):
        sums.verify(folder, folder / sums.SIGNERS)


def test_f100_another_key_does_not(folder: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(other)], check=True)
    kind, public, *_ = other.with_suffix(".pub").read_text().split()
    signers = tmp_path / "signers"
    signers.write_text(f"{sums.IDENTITY} {kind} {public}\n")
    with pytest.raises(SystemExit, match="no signature"):
        sums.verify(folder, signers)
