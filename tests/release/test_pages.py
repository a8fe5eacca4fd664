"""The website: every page is in it, and so is every file that a page links to."""

from pathlib import Path

import pytest
from release.pages import LINK, collect, navigation

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("pages")
    collect(ROOT, target)
    return target


def test_every_link_of_a_page_leads_to_a_file(pages: Path) -> None:
    missing = [
        f"{page.relative_to(pages)}: {link}"
        for page in pages.rglob("*.md")
        for link in LINK.findall(page.read_text())
        if not (page.parent / link).exists()
    ]
    assert missing == []
    assert (pages / "configs" / "ingero.yaml").exists()


def test_the_menu_has_the_pages_of_the_index_in_its_order(pages: Path) -> None:
    menu = navigation((pages / "docs" / "README.md").read_text())
    sections = {title: inner for part in menu for title, inner in part.items()}
    assert [*sections][:3] == ["Ingero", "Documentation", "Start here"]
    start = sections["Start here"]
    assert isinstance(start, list) and start[0] == {"quickstart": "docs/quickstart.md"}
    listed = [path for part in sections.values() if isinstance(part, list) for path in part]
    for page in listed:
        (path,) = page.values()
        assert (pages / path).exists()
    assert len(listed) > 30
