"""Questions as addresses: `/ask/NAME?…` is a page, and with `format` the same answer as data."""

import csv
import io
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ingero.core.csv_cell import csv_cell
from ingero.echo.tools.asker import PREFIX, Asker
from ingero.echo.tools.catalogue import TOOLS
from ingero.transport.http import SAFE_METHODS, Endpoint, json_response
from ingero.transport.tools.http import REQUEST_ID_HEADER, refusal, request_id
from ingero.transport.tools.tool import ToolRefused, by_name, call
from ingero.web.assets import asset_response

FORMAT: Final = "format"
FORMATS: Final = ("json", "csv")
SHELL: Final = "echo.html"
_STATIC: Final = "/static/"


def is_page(request: Request) -> bool:
    """Return whether a request is for a file of the page, which needs no token.

    `/` is also a path of MCP, so a browser is told by what it accepts.
    """
    path = request.scope["path"]
    if request.method not in SAFE_METHODS:
        return False
    if path == "/":
        return "text/html" in request.headers.get("accept", "")
    is_shell = path == "/ask" or (path.startswith("/ask/") and FORMAT not in request.query_params)
    return is_shell or path.startswith(_STATIC)


def ask_endpoint(asker_of: Callable[[Request], Asker]) -> Endpoint:
    """Return the handler of `/ask/NAME`."""

    async def endpoint(request: Request) -> Response:
        if is_page(request):
            return asset_response(request, SHELL)
        identifier, began_s = request_id(request), time.perf_counter()
        try:
            tool = by_name(TOOLS, PREFIX + request.path_params["name"].removeprefix(PREFIX))
            if tool.acts:
                raise ToolRefused("acts", "this tool changes something; use POST", 405)
            given = dict(request.query_params)
            kind = given.pop(FORMAT)
            if kind not in FORMATS:
                raise ToolRefused("bad_argument", f"format must be {' or '.join(FORMATS)}")
            answer = await call(tool, asker_of(request), given, lax=True)
        except ToolRefused as error:
            return refusal(error, identifier)
        headers = {REQUEST_ID_HEADER: identifier, "Cache-Control": "no-store"}
        if kind == "csv":
            text = to_csv(msgspec.to_builtins(answer))
            return Response(text, headers=headers, media_type="text/csv")
        took_ms = round((time.perf_counter() - began_s) * 1e3, 3)
        meta = {"duration_ms": took_ms, "request_id": identifier}
        return json_response({"data": answer, "meta": meta}, 200, headers)

    return endpoint


def to_csv(answer: Mapping[str, Any]) -> str:
    """Return the rows of an answer, its first list of objects, or the answer as one row."""
    if isinstance(answer.get("columns"), list) and isinstance(answer.get("rows"), list):
        columns, rows = answer["columns"], answer["rows"]
    else:
        lists = (value for value in answer.values() if isinstance(value, list) and value)
        objects = next((each for each in lists if isinstance(each[0], dict)), [answer])
        columns = list(dict.fromkeys(name for each in objects for name in each))
        rows = [[each.get(name) for name in columns] for each in objects]
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow([_cell(name) for name in columns])
    writer.writerows([[_cell(value) for value in row] for row in rows])
    return file.getvalue()


def _cell(value: object) -> object:
    if isinstance(value, dict | list):
        value = msgspec.json.encode(value).decode()
    return csv_cell(value)
