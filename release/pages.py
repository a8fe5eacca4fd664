"""`make site`: the documentation as a website, from the same Markdown that is read in the tree.

The folders are laid out as in the repository, so links between pages, and from pages to examples
and configurations, work in both. Nothing is fetched from elsewhere when a page is read.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import yaml

from release.tree import ROOT, copy_tree

TOP = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "LICENSE")
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")
ROW = re.compile(r"^\| (.*?) \|")


def collect(tree: Path, target: Path) -> None:
    """Copy all pages, and every file that one of them links to."""
    for name in TOP:
        shutil.copy(tree / name, target / name)
    shutil.copytree(tree / "docs", target / "docs")
    for page in sorted(target.rglob("*.md")):
        for link in LINK.findall(page.read_text()):
            wanted = (page.parent / link).resolve()
            source = tree / wanted.relative_to(target.resolve())
            if source.is_dir():
                shutil.copytree(source, wanted, dirs_exist_ok=True)
            elif not wanted.exists() and source.exists():
                wanted.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, wanted)


def navigation(index: str) -> list[dict[str, object]]:
    """Return the menu: the tables of docs/README.md, a section per heading."""
    sections: list[dict[str, object]] = [
        {"Ingero": "README.md"},
        {"Documentation": "docs/README.md"},
    ]
    for part in index.split("\n## ")[1:]:
        title, *lines = part.splitlines()
        rows = [match.group(1) for line in lines if (match := ROW.match(line))]
        found = [link for row in rows for link in re.findall(r"\[(.+?)\]\(([^)#]+\.md)\)", row)]
        pages = [{name: f"docs/{path}"} for name, path in found if not path.startswith("..")]
        if pages:
            sections.append({title: pages})
    return [*sections, {"Changes": "CHANGELOG.md"}, {"Security": "SECURITY.md"}]


def main() -> None:
    """Build the website into a folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "site")
    parser.add_argument("--zensical", default="zensical", help="program that builds it")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        folder = Path(work)
        tree = copy_tree(folder / "tree")
        (folder / "pages").mkdir()
        collect(tree, folder / "pages")
        about = {
            "site_name": "Ingero",
            "docs_dir": "pages",
            "site_dir": "site",
            "use_directory_urls": False,  # so that it can be read from a disk, too
            "theme": {"font": False, "language": "en", "features": ["search.highlight"]},
            "nav": navigation((tree / "docs" / "README.md").read_text()),
            "markdown_extensions": ["tables", "toc", "pymdownx.superfences", "attr_list"],
        }
        (folder / "mkdocs.yml").write_text(yaml.safe_dump(about, sort_keys=False))
        command = [arguments.zensical, "build", "--clean", "--strict", "-f", "mkdocs.yml"]
        done = subprocess.run(command, cwd=folder, check=False)
        if done.returncode:
            sys.exit(done.returncode)
        shutil.rmtree(arguments.out, ignore_errors=True)
        shutil.copytree(folder / "site", arguments.out)
    print(f"{arguments.out}: {len(list(arguments.out.rglob('*.html')))} pages")


if __name__ == "__main__":
    main()
