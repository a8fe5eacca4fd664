"""`make release`: every artefact of a release in one folder, with checksums and their signature.

Without $RELEASE_KEY the checksums are not signed. Packages are left out, with a sentence, where
nfpm is missing; the image where buildah is.
"""

import argparse
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path

from release import charts, image, packages, sbom, site, sums, wheels


def main() -> None:
    """Build what is asked for into an empty folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("dist"))
    parser.add_argument("--no-packages", action="store_true", help="leave deb and rpm out")
    parser.add_argument("--no-image", action="store_true", help="leave the image archive out")
    arguments = parser.parse_args()
    out: Path = arguments.out
    if out.exists() and any(out.iterdir()):
        sys.exit(f"{out} is not empty: remove it first")
    out.mkdir(parents=True, exist_ok=True)
    number = version("ingero")
    with tempfile.TemporaryDirectory() as work:
        built = wheels.build_all(out)
        say("wheels and source archive", built)
        x86_64 = next(path for path in built if "x86_64" in path.name)
        bill = out / f"ingero-{number}.cdx.json"
        whole = site.install(x86_64, "[all]", Path(work) / "site", "/opt/ingero")
        bill.write_text(sbom.bill_of(whole, "ingero", number))
        say("bill of materials", [bill])
        say("charts", charts.package(out))
        if arguments.no_packages or packages.nfpm() is None:
            print("packages: left out (nfpm is built by `make peers-charts`)")
        else:
            for architecture in wheels.ARCHITECTURES:
                wheel = next(path for path in built if architecture in path.name)
                made = packages.build_packages(wheel, number, out, architecture)
                say(f"packages for {architecture}", made)
        if arguments.no_image or image.missing_programs():
            print("image: left out (`make peers-images` installs what builds it)")
        else:
            tag = f"{image.NAME}:{number}"
            print(f"image: {tag} {image.build_image(x86_64, tag)}")
            say("image", [image.write_archive(tag, out / f"ingero-{number}-x86_64.oci.tar")])
        say("checksums", [sums.write_sums(out)])
        key = sums.release_key(Path(work))
        if key is None:
            print("signature: left out ($RELEASE_KEY names the key)")
        else:
            say("signature", [sums.sign(out, key)])


def say(what: str, paths: list[Path]) -> None:
    """Print one line about what was made."""
    print(f"{what}: {', '.join(path.name for path in paths) or 'none'}", flush=True)


if __name__ == "__main__":
    main()
