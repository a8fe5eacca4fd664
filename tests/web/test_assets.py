"""The files of the page: content policy, caching, and nothing but the files."""

import pytest
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.testclient import TestClient

from ingero.web.assets import file_endpoint, page_endpoint, read_asset

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
    """Everything that the page loads comes from the service itself."""
    for name in ("index.html", "app.mjs", "parts.mjs", "live.mjs", "page.css"):
        found = read_asset(name)
        assert found is not None
        assert b"//" not in found.replace(b"// ", b"").replace(b"://www.w3.org", b"")
