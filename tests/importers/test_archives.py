"""Archives and compressed files as recordings: a sentence, little memory, nothing unpacked."""

import bz2
import gzip
import io
import lzma
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.support.wire_attempts import MEMORY_BYTES, peak_bytes

from ingero.errors import ForeignFile
from ingero.importers.detect import load

ZEROS = bytes(100 << 20)
TRACE = b'{"traceEvents": [' + b"{}," * (16 << 20)


def tar(*members: tuple[str, bytes, bytes, str], packed: str = "") -> bytes:
    """Members as (name, content, type, target of a link)."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode=f"w:{packed}") as archive:
        for name, content, kind, target in members:
            member = tarfile.TarInfo(name)
            member.type, member.linkname, member.size = kind, target, len(content)
            archive.addfile(member, io.BytesIO(content))
    return made.getvalue()


def zipped(name: str, content: bytes) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, content)
    return made.getvalue()


def outside(packed: str = "") -> bytes:
    """Members that would be written or read outside of their folder."""
    return tar(
        ("../escaped", b"x", tarfile.REGTYPE, ""),
        ("/tmp/ingero-escaped", b"x", tarfile.REGTYPE, ""),
        ("link", b"", tarfile.SYMTYPE, ".."),
        ("link/escaped", b"x", tarfile.REGTYPE, ""),
        ("hard", b"", tarfile.LNKTYPE, "/etc/passwd"),
        ("device", b"", tarfile.CHRTYPE, ""),
        ("pipe", b"", tarfile.FIFOTYPE, ""),
        packed=packed,
    )


def inner(content: bytes) -> tuple[str, bytes, bytes, str]:
    return ("rank0.json", content, tarfile.REGTYPE, "")


FILES: dict[str, Callable[[], bytes]] = {
    "outside.tar": outside,
    "outside.tar.gz": lambda: outside("gz"),
    "outside.tar.xz": lambda: outside("xz"),
    "outside.zip": lambda: zipped("../escaped", b"x"),
    "bomb.tar.gz": lambda: tar(inner(ZEROS), packed="gz"),
    "bomb.tar.xz": lambda: lzma.compress(tar(inner(ZEROS)), preset=0),
    "bomb.zip": lambda: zipped("rank0.json", ZEROS),
    "bomb.xz": lambda: lzma.compress(ZEROS, preset=0),
    "bomb.bz2": lambda: bz2.compress(ZEROS[: 48 << 20]),
    "bomb.zst": lambda: bytes.fromhex("28b52ffd") + b"\xff" * 100,
    "bomb.json.gz": lambda: gzip.compress(TRACE),
    "gzip under another name.json": lambda: gzip.compress(TRACE),
    "nested.gz": lambda: gzip.compress(gzip.compress(gzip.compress(ZEROS))),
}


@pytest.mark.parametrize("name", FILES)
def test_archives_are_refused_with_a_sentence(name: str, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / name).write_bytes(FILES[name]())
    Path("/proc/self/clear_refs").write_text("5")  # making the file took memory, too
    before = peak_bytes()
    with pytest.raises(ForeignFile, match=name):
        load([folder / name])
    assert peak_bytes() - before < MEMORY_BYTES
    assert [path.name for path in tmp_path.rglob("*") if path.is_file()] == [name]
    assert not Path("/tmp/ingero-escaped").exists()
