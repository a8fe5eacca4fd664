"""Wheels: a pure one, and one per architecture with the compiled parts; and the source archive.

The compiled wheels are the pure one plus two extensions, so they differ in nothing else. Both are
compiled by `ziglang` against an old glibc, with the headers of this Python: x86_64 and aarch64 are
little-endian with 64-bit longs, so the headers agree in all that an extension uses.
"""

import base64
import gzip
import hashlib
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path

from release.tree import build_environment, commit_time, copy_tree, write_tar

PARTS = ("ingero/contract/_native/codecs", "ingero/fleet/_native/fast_path")
GLIBC = "2.17"
ARCHITECTURES = ("x86_64", "aarch64")
PYTHON_TAG = f"cp{sys.version_info.major}{sys.version_info.minor}"


def build_wheel(out: Path, architecture: str = "x86_64") -> Path:
    """Build the compiled wheel of one architecture alone."""
    with tempfile.TemporaryDirectory() as work:
        tree = copy_tree(Path(work) / "tree")
        pure = _pure_wheel(tree, Path(work))
        return _compiled_wheel(tree, pure, out, architecture)


def build_all(out: Path) -> list[Path]:
    """Build the pure wheel, one wheel per architecture, and the source archive."""
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        tree = copy_tree(Path(work) / "tree")
        sdist = _source_archive(tree, out)
        pure = _pure_wheel(tree, Path(work))
        compiled = [_compiled_wheel(tree, pure, out, arch) for arch in ARCHITECTURES]
        return [_written(pure, out, "py3-none-any", {}), *compiled, sdist]


def _pure_wheel(tree: Path, work: Path) -> Path:
    environment = build_environment() | {"INGERO_BUILD": "pure"}
    command = ["-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation"]
    subprocess.run(
        [sys.executable, *command, "-w", str(work), "."], cwd=tree, env=environment, check=True
    )
    return next(work.glob("*-py3-none-any.whl"))


def _compiled_wheel(tree: Path, pure: Path, out: Path, architecture: str) -> Path:
    """Return the pure wheel plus the extensions of one architecture."""
    tag = f"{PYTHON_TAG}-{PYTHON_TAG}-manylinux_{GLIBC.replace('.', '_')}_{architecture}"
    suffix = f".cpython-{PYTHON_TAG[2:]}-{architecture}-linux-gnu.so"
    added = {f"{part}{suffix}": _extension(tree, part, architecture) for part in PARTS}
    wheel = _written(pure, out, tag, added)
    _check_glibc(wheel)
    return wheel


def _extension(tree: Path, part: str, architecture: str) -> bytes:
    """Compile one extension with zig against an old glibc; return it without symbols."""
    source = Path("src") / f"{part}.pyx"
    c_file = source.with_suffix(".c")
    if not (tree / c_file).exists():
        module = part.replace("/", ".")  # `ingero` is a namespace package: Cython would miss it
        cython = ["-m", "cython", "-3", "--module-name", module, "-I", "src", str(source)]
        subprocess.run([sys.executable, *cython], cwd=tree, env=build_environment(), check=True)
    headers = sysconfig.get_paths()["include"]
    with tempfile.TemporaryDirectory() as work:
        built = Path(work) / "part.so"
        target = ["-target", f"{architecture}-linux-gnu.{GLIBC}", "-shared", "-fPIC", "-O2", "-g0"]
        command = [sys.executable, "-m", "ziglang", "cc", *target, "-s", "-DNDEBUG"]
        command += [f"-I{headers}", "-fno-strict-aliasing", "-o", str(built), str(c_file)]
        subprocess.run(command, cwd=tree, env=build_environment(), check=True)
        return built.read_bytes()


def _check_glibc(wheel: Path) -> None:
    """Have auditwheel confirm that no symbol is newer than the tag promises."""
    command = [sys.executable, "-m", "auditwheel", "show", str(wheel)]
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    text = " ".join(shown.stdout.split())
    if shown.returncode or f"manylinux_{GLIBC.replace('.', '_')}" not in text:
        raise SystemExit(f"auditwheel does not accept {wheel.name}:\n{shown.stdout}{shown.stderr}")


def _written(pure: Path, out: Path, tag: str, added: dict[str, bytes]) -> Path:
    """Write a wheel with this tag and these additional files, in the same bytes every time."""
    with zipfile.ZipFile(pure) as archive:
        files = {name: archive.read(name) for name in archive.namelist()}
        modes = {info.filename: info.external_attr >> 16 for info in archive.infolist()}
    label = next(name for name in files if name.endswith(".dist-info/WHEEL"))
    record = label.replace("/WHEEL", "/RECORD")
    python, abi, platform = tag.split("-")
    purelib = "true" if platform == "any" else "false"
    lines = [line for line in files[label].decode().splitlines() if line and ":" in line]
    kept = [line for line in lines if not line.startswith(("Tag:", "Root-Is-Purelib:"))]
    files[label] = "\n".join([*kept, f"Root-Is-Purelib: {purelib}", f"Tag: {tag}", ""]).encode()
    files |= added
    del files[record]
    rows = [f"{name},sha256={_digest(data)},{len(data)}" for name, data in sorted(files.items())]
    files[record] = "\n".join([*rows, f"{record},,", ""]).encode()
    project = "-".join(pure.name.split("-")[:2])
    path = out / f"{project}-{python}-{abi}-{platform}.whl"
    out.mkdir(parents=True, exist_ok=True)
    stamp = time.gmtime(max(commit_time(), 315_532_800))[:6]  # zip knows no time before 1980
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name in sorted(files, key=lambda name: (name == record, name)):
            info = zipfile.ZipInfo(name, stamp)
            info.external_attr = (0o100755 if modes.get(name, 0) & 0o100 else 0o100644) << 16
            info.compress_type = zipfile.ZIP_DEFLATED
            archive.writestr(info, files[name])
    return path


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()


def _source_archive(tree: Path, out: Path) -> Path:
    """Build the sdist and pack it again: sorted, without owners, with one time."""
    with tempfile.TemporaryDirectory() as work:
        build = "import setuptools.build_meta as m, sys; print(m.build_sdist(sys.argv[1]))"
        command = [sys.executable, "-c", build, work]
        environment = build_environment()
        subprocess.run(command, cwd=tree, env=environment, check=True, capture_output=True)
        made = next(Path(work).glob("*.tar.gz"))
        with tarfile.open(made) as archive:
            archive.extractall(work, filter="data")
        folder = Path(work) / made.name.removesuffix(".tar.gz")
        pack(folder, out / made.name, folder.name)
        return out / made.name


def pack(folder: Path, target: Path, prefix: str) -> None:
    """Write a .tar.gz of a folder that is the same for the same files."""
    with (
        target.open("wb") as file,
        gzip.GzipFile("", "wb", 9, file, mtime=commit_time()) as packed,
    ):
        write_tar(folder, packed, f"{prefix}/")
