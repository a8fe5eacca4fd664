"""`make release-check`: every artefact that runs here, as a user without a compiler would use it.

Wheels and the source archive are installed into an empty home and run the demo; charts are read by
Helm, the wheel for aarch64 by qemu, and the image archive by its index, where those programs are.
deb and image are installed and run by `make e2e-packages` and `make e2e-image`.
"""

import json
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
from pathlib import Path

from release import aarch64, sums
from release.image import missing_programs

UV = [str(Path(sys.executable).parent / "uv")]
FROM_OUTSIDE = ("UV_", "SSL_CERT_", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
COMPILED, PURE = "codecs, fast path", "none"


def main() -> None:
    """Check the signature, then every artefact; an assertion that fails ends it."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else "dist")
    if (folder / sums.SIGNATURE).exists():
        sums.verify(folder, folder / sums.SIGNERS)
        print("checksums and signature: fine")
    check_installed(_only(folder, "*x86_64.whl"), COMPILED)
    check_installed(_only(folder, "ingero-*.tar.gz"), PURE)
    check_tool(_only(folder, "*none-any.whl"), PURE)
    check_aarch64(_only(folder, "*aarch64.whl"))
    for chart in sorted(folder.glob("*.tgz")):
        check_chart(chart)
    for archive in folder.glob("*.oci.tar"):
        check_image(archive)


def check_installed(artefact: Path, parts: str) -> None:
    """Install a wheel or the source archive, without a compiler, and run the demo from it."""
    with tempfile.TemporaryDirectory() as home:
        subprocess.run(
            [*UV, "venv", "--quiet", "--python", sys.executable, f"{home}/venv"], check=True
        )
        command = [*UV, "pip", "install", "--quiet", "--python", f"{home}/venv/bin/python"]
        command += ["--only-binary", ":all:"]
        command += [] if artefact.suffix == ".whl" else ["--no-binary", "ingero"]
        command.append(str(artefact))
        subprocess.run(command, env=_environment(home), check=True)
        _demo([f"{home}/venv/bin/ingero"], home, artefact, parts)


def check_tool(wheel: Path, parts: str) -> None:
    """Run the demo as `uvx ingero demo` would, from the wheel."""
    with tempfile.TemporaryDirectory() as home:
        run = [*UV, "tool", "run", "--quiet", "--python", sys.executable, "--no-build"]
        _demo([*run, "--from", str(wheel.resolve()), "ingero"], home, wheel, parts)


def check_aarch64(wheel: Path) -> None:
    """Load the compiled parts under qemu."""
    if not (aarch64.CACHE / "usr").exists() or shutil.which("qemu-aarch64-static") is None:
        print(f"{wheel.name}: not run (`make test-aarch64` does)")
        return
    with tempfile.TemporaryDirectory() as work:
        packages = Path(work) / "packages"
        aarch64.install(wheel, packages)
        assert aarch64.run(packages, 65536, ["-c", aarch64.CHECK]) == 0
    print(f"{wheel.name}: its compiled parts load under qemu")


def check_chart(chart: Path) -> None:
    """Let Helm read a packed chart."""
    peers = Path(os.environ.get("INGERO_PEERS") or Path.home() / ".cache/ingero/peers")
    helm = shutil.which("helm", path=f"{os.environ['PATH']}:{peers / 'bin'}")
    if helm is None:
        print(f"{chart.name}: not read (`make peers-charts` installs Helm)")
        return
    subprocess.run([helm, "show", "chart", str(chart)], check=True, capture_output=True)
    print(f"{chart.name}: read by Helm")


def check_image(archive: Path) -> None:
    """Check that every blob that the archive names is in it, under its digest."""
    with tarfile.open(archive) as packed:
        names = set(packed.getnames())
        index = json.load(packed.extractfile("index.json"))  # type: ignore[arg-type] # a file
        (entry,) = index["manifests"]
        manifest = json.load(packed.extractfile(_blob(entry)))  # type: ignore[arg-type] # a file
    assert {_blob(each) for each in (manifest["config"], *manifest["layers"])} <= names
    if not missing_programs():
        subprocess.run(["skopeo", "inspect", f"oci-archive:{archive}"], check=True, stdout=-3)
    print(f"{archive.name}: {entry['digest']}")


def _blob(entry: dict[str, str]) -> str:
    return "blobs/" + entry["digest"].replace(":", "/")


def _only(folder: Path, pattern: str) -> Path:
    (found,) = folder.glob(pattern)
    return found


def _environment(home: str) -> dict[str, str]:
    """Return an empty home and a path without a compiler; packages come from the usual place."""
    cache = os.environ.get("UV_CACHE_DIR") or str(Path.home() / ".cache" / "uv")
    usual = {k: v for k, v in os.environ.items() if k.upper().startswith(FROM_OUTSIDE)}
    programs = Path(home) / "programs"
    programs.mkdir(exist_ok=True)
    for name in ("dirname", "realpath"):  # scripts of uv find their Python with these
        if not (programs / name).exists():
            (programs / name).symlink_to(shutil.which(name) or name)
    return usual | {"HOME": home, "PATH": str(programs), "LANG": "C.UTF-8", "UV_CACHE_DIR": cache}


def _demo(ingero: list[str], home: str, artefact: Path, parts: str) -> None:
    environment = _environment(home)
    shown = _run([*ingero, "--version"], environment)
    assert f"compiled parts: {parts}" in shown, shown
    assert "build: commit " in shown, shown
    began_s = time.monotonic()
    told = _run([*ingero, "demo"], environment)
    assert "rank 19" in told, told
    took_s = time.monotonic() - began_s
    print(f"{artefact.name}: runs without a compiler, and the demo names rank 19 ({took_s:.0f} s)")


def _run(command: list[str], environment: dict[str, str]) -> str:
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=900, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


if __name__ == "__main__":
    main()
