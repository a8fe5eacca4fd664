"""Foreign web pages: their host names, origins and forms are refused; pages cannot be framed."""

import pytest
from starlette.applications import Starlette
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from ingero.transport.browsers import (
    BrowserGuard,
    is_foreign,
    is_local_name,
    page_headers,
    page_response,
)


def client(*, is_local: bool, base: str = "http://localhost:8080") -> TestClient:
    return TestClient(BrowserGuard(PlainTextResponse("ok"), is_local=is_local), base_url=base)


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:80", "app.localhost", "127.0.0.1:8080", "127.9.9.9", "[::1]:1", ""],
)
def test_local_names(host: str) -> None:
    assert is_local_name(host)


@pytest.mark.parametrize(
    "host",
    ["evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "10.0.0.1", "[::2]",
     "notlocalhost", "0.0.0.0", "localhost:80:80"],
)  # fmt: skip
def test_every_other_name_is_refused_on_loopback_without_a_token(host: str) -> None:
    assert not is_local_name(host)
    assert client(is_local=True).get("/", headers={"Host": host}).status_code == 403
    assert client(is_local=False).get("/", headers={"Host": host}).status_code == 200
    assert client(is_local=True).get("/metrics", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "", "http://localhost", "http://localhost:8081",
     "http://evil@localhost:8080", "localhost:8080", "http://[localhost:8080"],
)  # fmt: skip
def test_changes_from_another_origin_are_refused(origin: str) -> None:
    page = client(is_local=True)
    assert page.post("/", json={}, headers={"Origin": origin}).status_code == 403
    assert page.get("/", headers={"Origin": origin}).status_code == 200


def test_changes_from_the_same_origin_or_from_no_browser_pass() -> None:
    page = client(is_local=True)
    assert page.post("/", json={}).status_code == 200
    own = {"Origin": "http://localhost:8080"}
    assert page.post("/", json={}, headers=own).status_code == 200
    assert not is_foreign([(b"origin", b"https://Fleet"), (b"host", b"fleet")])


@pytest.mark.parametrize("path", ["/", "/missing"])
def test_no_reply_can_be_framed_or_taken_for_a_page(path: str) -> None:
    app = Starlette(routes=[Route("/", lambda _: JSONResponse({}))])
    for is_local, host in ((False, "localhost"), (True, "localhost"), (True, "evil.example")):
        page = TestClient(BrowserGuard(app, is_local=is_local))
        headers = page.get(path, headers={"Host": host}).headers
        assert headers["content-security-policy"] == "default-src 'none'; frame-ancestors 'none'"
        assert headers["x-frame-options"] == "DENY"
        assert headers["x-content-type-options"] == "nosniff"


def test_redirects_stay_on_this_server_whatever_its_name() -> None:
    app = Starlette(routes=[Route("/agents", lambda _: JSONResponse({}))])
    page = TestClient(BrowserGuard(app, is_local=False), follow_redirects=False)
    for path, place in (("/agents/", "/agents"), ("/agents/?next=//evil", "/agents?next=//evil")):
        reply = page.get(path, headers={"Host": "evil.example"})
        assert (reply.status_code, reply.headers["location"]) == (307, place)
    away = TestClient(
        BrowserGuard(RedirectResponse("https://evil.example//evil.example/x"), is_local=False),
        follow_redirects=False,
    )
    assert away.get("/").headers["location"] == "/evil.example/x"


def test_a_page_keeps_its_own_policy() -> None:
    guarded = BrowserGuard(page_response("<script>1</script>"), is_local=False)
    found = TestClient(guarded).get("/").headers.get_list("content-security-policy")
    assert len(found) == 1
    assert "script-src 'sha256-" in found[0]


def test_a_page_allows_its_own_script_and_style_and_no_frame() -> None:
    headers = page_headers("<style>a</style><script>b</script>")
    policy = headers["Content-Security-Policy"]
    assert "default-src 'none'" in policy
    assert "frame-ancestors 'none'" in policy
    assert policy.count("'sha256-") == 2
    assert headers["X-Frame-Options"] == "DENY"
    assert "script-src 'none'; style-src 'none'" in page_headers("")["Content-Security-Policy"]
