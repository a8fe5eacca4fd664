"""The files of the page over HTTP: static, without a token, under a strict content policy.

They hold no data. What the page shows comes from the API of its service, with a token.
"""

import hashlib
from collections.abc import Awaitable, Callable
from functools import lru_cache
from importlib.resources import files
from typing import Final

from starlette.requests import Request
from starlette.responses import Response

Endpoint = Callable[[Request], Awaitable[Response]]
POLICY: Final = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "require-trusted-types-for 'script'; trusted-types 'none'"
)
_HEADERS: Final = {
    "Content-Security-Policy": POLICY,
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Opener-Policy": "same-origin-allow-popups",  # Perfetto is handed a trace
    "Cache-Control": "no-cache",  # a new version is used at once; an ETag saves the bytes
}
_TYPES: Final = {
    "mjs": "text/javascript",
    "css": "text/css",
    "svg": "image/svg+xml",
    "html": "text/html",
}
_FOLDERS: Final = ("page", "vendor")


@lru_cache(maxsize=64)
def read_asset(name: str) -> bytes | None:
    """Return a file of the page by its name, None for any other name."""
    if name.rpartition(".")[2] not in _TYPES or "/" in name:
        return None
    for folder in _FOLDERS:
        found = files("ingero.web").joinpath(folder, name)
        if found.is_file():
            return found.read_bytes()
    return None


def asset_response(request: Request, name: str) -> Response:
    """Return a file of the page, or that the browser has it already."""
    body = read_asset(name)
    if body is None:
        return Response(status_code=404)
    tag = f'"{hashlib.sha256(body).hexdigest()[:16]}"'
    headers = _HEADERS | {"ETag": tag}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers, media_type=_TYPES[name.rpartition(".")[2]])


def sign_endpoint(what: str) -> Endpoint:
    """Return the handler of `/` where there is no page: one sentence that says what it is."""

    async def sign(request: Request) -> Response:
        return Response(f"{what}\n", headers=_HEADERS, media_type="text/plain")

    return sign


def page_endpoint(shell: str) -> Endpoint:
    """Return the handler of every address of a page; the page reads its address itself."""

    async def page(request: Request) -> Response:
        return asset_response(request, shell)

    return page


async def file_endpoint(request: Request) -> Response:
    """Return a file of the page, named in the path."""
    return asset_response(request, request.path_params["name"])
