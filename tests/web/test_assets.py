"""The files of the page: content policy, caching, and nothing but the files."""

import re
from pathlib import Path

import pytest
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.testclient import TestClient

from ingero.web import assets
from ingero.web.assets import file_endpoint, page_endpoint, read_asset

PAGE = Path(assets.__file__).parent / "page"

CLIENT = TestClient(
    Starlette(
        routes=[
            Route("/", page_endpoint("index.html")),
            Route("/job/{id:path}", page_endpoint("index.html")),
            Route("/static/{name}", file_endpoint),
        ]
    )
)


@pytest.mark.parametrize("path", ["/", "/job/a/b", "/static/app.mjs", "/static/preact.mjs"])
def test_every_file_has_the_strict_policy(path: str) -> None:
    reply = CLIENT.get(path)
    assert reply.status_code == 200
    policy = reply.headers["content-security-policy"]
    for part in (
        "default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
    ):  # fmt: skip
        assert part in policy
    assert "unsafe" not in policy
    assert reply.headers["x-content-type-options"] == "nosniff"


def test_a_browser_that_has_the_file_gets_no_bytes() -> None:
    tag = CLIENT.get("/static/page.css").headers["etag"]
    again = CLIENT.get("/static/page.css", headers={"If-None-Match": tag})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize(
    "name", ["assets.py", "../assets.py", "..%2fassets.py", "LICENSE.htm.txt", "none.css", ""]
)
def test_other_files_are_not_served(name: str) -> None:
    assert CLIENT.get(f"/static/{name}").status_code == 404
    assert read_asset(name) is None


def test_no_file_names_another_server() -> None:
    """Everything that the page loads comes from the service itself; Perfetto is another page."""
    for path in PAGE.iterdir():
        text = path.read_text().replace("// ", "").replace("://www.w3.org", "")
        assert ("//" in text) == (path.name == "perfetto.mjs"), path.name


MODULES = sorted(PAGE.glob("*.mjs"))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_every_name_that_a_module_exports_is_imported_by_another(path: Path) -> None:
    exported = re.findall(
        r"^export (?:async )?(?:const|function|class) (\w+)", path.read_text(), re.M
    )
    others = "".join(other.read_text() for other in MODULES if other != path)
    imported = {
        name.strip()
        for names in re.findall(rf"import \{{([^}}]*)\}} from \"./{path.name}\"", others)
        for name in names.split(",")
    }
    assert set(exported) <= imported


@pytest.mark.parametrize("path", MODULES, ids=lambda path: path.name)
def test_a_module_imports_only_what_it_uses_and_has_short_lines(path: Path) -> None:
    text = path.read_text()
    body = text[text.rfind('.mjs";') :]
    for names in re.findall(r"^import \{([^}]*)\}", text, re.M):
        for name in filter(None, map(str.strip, names.split(","))):
            assert re.search(rf"\b{name}\b", body), name
    assert max(map(len, text.splitlines())) <= 100
