"""Refuses what a foreign web page can make a browser send, on every listener.

A browser sends requests for every page that it shows. It adds the address of the page (Origin) and
the name that was asked for (Host), which may be any name that resolves to this machine.
"""

import base64
import hashlib
from collections.abc import Iterable
from http import HTTPStatus
from typing import Final
from urllib.parse import urlsplit

from starlette.responses import HTMLResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from ingero.contract.api_paths import PROMETHEUS
from ingero.transport.http import SAFE_METHODS, error_response, never_a_page
from ingero.transport.tls import is_loopback

FOREIGN_ORIGIN: Final = "the request comes from a page of another server"


class BrowserGuard:
    """Refuses requests that a foreign page can send: by host name and origin.

    `is_local` is for listeners on loopback without a token: they answer to local names only, except
    to Prometheus, which may reach its page by any name.
    """

    def __init__(self, app: ASGIApp, *, is_local: bool) -> None:
        self._app = app
        self._is_local = is_local

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            await (self._refusal(scope) or self._app)(scope, receive, never_a_page(send))

    def _refusal(self, scope: Scope) -> Response | None:
        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1")
        if self._is_local and scope["path"] != PROMETHEUS and not is_local_name(host):
            return error_response(
                f"{host_name(host)!r} is not a name of this machine; use localhost, or set a token",
                HTTPStatus.FORBIDDEN,
            )
        if scope["method"] not in SAFE_METHODS and is_foreign(scope["headers"]):
            return error_response(FOREIGN_ORIGIN, HTTPStatus.FORBIDDEN)
        return None


def is_foreign(headers: Iterable[tuple[bytes, bytes]]) -> bool:
    """Return whether the request names an origin that is not the server itself.

    Only host and port are compared, because a proxy may speak TLS for us.
    """
    found = dict(headers)
    origin = found.get(b"origin")
    if origin is None:
        return False
    own = found.get(b"host", b"").decode("latin-1").lower()
    try:
        return not own or urlsplit(origin.decode("latin-1")).netloc.lower() != own
    except ValueError:  # brackets that do not match
        return True


def is_local_name(host: str) -> bool:
    """Return whether a Host header names loopback; clients that are no browser may send none."""
    name = host_name(host).removesuffix(".")
    return not host or name.endswith(".localhost") or is_loopback(f"[{name}]")


def host_name(header: str) -> str:
    """Return the Host header without its port and without the brackets of IPv6."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.rpartition(":")[0].lower() if header.count(":") == 1 else header.lower()


def page_response(page: str) -> Response:
    """Return an HTML page that runs only its own script and that no other page may frame."""
    return HTMLResponse(page, headers=page_headers(page))


def page_headers(page: str) -> dict[str, str]:
    """Return the headers of an HTML page with at most one inline script and style."""
    script, style = _inline_digest(page, "script"), _inline_digest(page, "style")
    return {
        "Content-Security-Policy": (
            f"default-src 'none'; connect-src 'self'; script-src {script}; style-src {style}; "
            "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        ),
        "X-Frame-Options": "DENY",
        "Referrer-Policy": "no-referrer",
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-cache",
    }


def _inline_digest(page: str, tag: str) -> str:
    _, opened, rest = page.partition(f"<{tag}>")
    if not opened:
        return "'none'"
    content = rest.partition(f"</{tag}>")[0]
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
