"""`make image`: the image of all services as an OCI archive, built without a daemon.

The base is Debian with Python alone, made from packages, because a registry may be out of reach.
`--base IMAGE` takes another one.
"""

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from release import sbom, site, wheels
from release.tree import ROOT, build_environment, commit_time, write_tar

HOME = "/opt/ingero"
NAME = "localhost/ingero"
EXTRAS = "echo,alerts,replicas"


def prepare(folder: Path, wheel: Path, base_tar: Path | None, extras: str) -> None:
    """Write what the image holds beside its base: environment, configuration, bill of materials."""
    root = folder / "image"
    shutil.rmtree(root, ignore_errors=True)
    packages = site.install(wheel, f"[{extras}]", root / "opt/ingero", HOME)
    site.compile_all(root / "opt/ingero", HOME)
    config = root / "etc/ingero-fleet/config.yaml"
    config.parent.mkdir(parents=True)
    shutil.copy(ROOT / "configs/fleet-config-plain.yaml", config)
    (root / "var/lib/ingero").mkdir(parents=True)
    with tempfile.TemporaryDirectory() as work:
        debian = None
        if base_tar is not None:
            extract = ["tar", "-xf", str(base_tar), "-C", work, "./var/lib/dpkg/status"]
            subprocess.run(extract, check=True)
            debian = Path(work)
        bill = root / "usr/share/doc/ingero/ingero.cdx.json"
        bill.parent.mkdir(parents=True)
        bill.write_text(sbom.bill_of(packages, "ingero", version("ingero"), debian))
    for path in [*root.rglob("*"), root]:
        if not path.is_symlink():
            os.utime(path, (commit_time(), commit_time()))


def build(folder: Path, base: str, tag: str) -> str:
    """Build the image; return its digest."""
    command = ["buildah", "bud", "--isolation", "chroot", "--timestamp", str(commit_time())]
    command += ["--no-cache", "--layers=false", "--quiet", "--build-arg", f"BASE={base}"]
    command += ["--file", str(ROOT / "Containerfile"), "--tag", tag, str(folder)]
    done = _buildah(command)
    return done.split()[-1]


def import_base(tar: Path) -> str:
    """Turn a root file system into a base image, once; return its name."""
    name = "localhost/ingero-base:debian"
    found = subprocess.run(["buildah", "images", "-q", name], capture_output=True, check=False)
    if found.returncode or not found.stdout.strip():
        container = _buildah(["buildah", "from", "scratch"]).strip()
        _buildah(["buildah", "add", "--quiet", container, str(tar), "/"])
        _buildah(["buildah", "commit", "--quiet", "--timestamp", "0", "--rm", container, name])
    return name


def _buildah(command: list[str]) -> str:
    done = subprocess.run(
        command, env=build_environment(), capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{' '.join(command[:2])} failed:\n{done.stdout}{done.stderr}")
    return done.stdout


def build_image(wheel: Path, tag: str, base: str | None = None, extras: str = EXTRAS) -> str:
    """Build the image of a wheel; return its digest. Without a base one is made from packages."""
    folder = ROOT / "build"
    folder.mkdir(exist_ok=True)
    base_tar = None
    if base is None:
        cache = Path(os.environ.get("INGERO_PEERS") or Path.home() / ".cache/ingero/peers")
        base_tar = cache / "base.tar"
        subprocess.run([ROOT / "release/base.sh", base_tar], check=True)
        base = import_base(base_tar)
    prepare(folder, wheel, base_tar, extras)
    return build(folder, base, tag)


def write_archive(tag: str, target: Path) -> Path:
    """Write an image as an OCI archive, in the same bytes for the same image."""
    with tempfile.TemporaryDirectory() as work:
        layout = f"oci:{work}/image:{tag.rsplit(':', 1)[1]}"
        source = f"containers-storage:{tag}"
        subprocess.run(["skopeo", "copy", "--quiet", source, layout], check=True)
        with target.open("wb") as file:
            write_tar(Path(work) / "image", file, "")
    return target


def missing_programs() -> list[str]:
    """Return what is not installed of the programs that build an image."""
    needed = ("buildah", "mmdebstrap", "skopeo")
    return [name for name in needed if shutil.which(name) is None]


def main() -> None:
    """Build the image and write it as an OCI archive."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--base", help="base image; one is made from Debian packages if omitted")
    parser.add_argument("--out", type=Path, help="OCI archive to write")
    parser.add_argument("--wheel", type=Path, help="wheel to install; built if omitted")
    parser.add_argument("--with", dest="more", default="", help="more extras, such as lake")
    parser.add_argument("--tag", default=f"{NAME}:{version('ingero')}")
    arguments = parser.parse_args()
    wheel = arguments.wheel or wheels.build_wheel(ROOT / "build" / "wheel")
    extras = ",".join(filter(None, (EXTRAS, arguments.more)))
    print(f"{arguments.tag} {build_image(wheel, arguments.tag, arguments.base, extras)}")
    if arguments.out:
        write_archive(arguments.tag, arguments.out)


if __name__ == "__main__":
    main()
