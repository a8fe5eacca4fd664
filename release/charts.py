"""Charts, as Helm packs them, in the same bytes every time."""

import shutil
import tarfile
import tempfile
from pathlib import Path

import yaml

from release.tree import copy_tree
from release.wheels import pack


def package(out: Path) -> list[Path]:
    """Write one archive per chart; a chart archive is its folder, so Helm is not needed."""
    made = []
    with tempfile.TemporaryDirectory() as work:
        tree = copy_tree(Path(work) / "tree")
        for chart in sorted((tree / "helm").glob("*/Chart.yaml")):
            about = yaml.safe_load(chart.read_text())
            shutil.rmtree(chart.parent / "tests", ignore_errors=True)
            target = out / f"{about['name']}-{about['version']}.tgz"
            pack(chart.parent, target, about["name"])
            with tarfile.open(target) as archive:
                assert f"{about['name']}/Chart.yaml" in archive.getnames()
            made.append(target)
    return made
