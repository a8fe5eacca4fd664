"""Tools over HTTP: listing, calls and OpenAPI 3.1, with one form of answers and of refusals."""

import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from ingero.errors import TooLarge
from ingero.transport.bounded import read_request_body
from ingero.transport.http import Endpoint, json_response
from ingero.transport.tools.tool import Context, Tool, ToolRefused, by_name, call, schemas

MAX_QUESTION_BYTES = 1 << 20
REQUEST_ID_HEADER = "X-Request-Id"


def request_id(request: Request) -> str:
    """Return the caller's request id if it is short and printable, else a new one."""
    given = request.headers.get(REQUEST_ID_HEADER, "")
    return (
        given
        if given.isascii() and given.isprintable() and 0 < len(given) <= 64
        else secrets.token_hex(8)
    )


def refusal(error: ToolRefused, identifier: str) -> Response:
    """Return a refusal in the form that HTTP and MCP share."""
    headers = {REQUEST_ID_HEADER: identifier}
    if error.retry_after_s is not None:
        headers["Retry-After"] = str(error.retry_after_s)
    why: dict[str, Any] = {"code": error.code, "message": str(error), "request_id": identifier}
    if error.choices:
        why["choices"] = error.choices
    return json_response({"error": why}, error.status, headers)


async def read_question(request: Request) -> dict[str, Any]:
    """Return the body as a JSON object; an empty body means default arguments."""
    try:
        body = await read_request_body(request, MAX_QUESTION_BYTES)
    except TooLarge as error:
        raise ToolRefused("too_large", str(error), status=413) from None
    if not body:
        return {}
    try:
        arguments = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ToolRefused("bad_json", f"the body is not JSON: {error}") from None
    if not isinstance(arguments, dict):
        raise ToolRefused("bad_json", "the body must be a JSON object of arguments")
    return arguments


def list_tools(tools: Sequence[Tool[Context]]) -> dict[str, Any]:
    """Return every tool with its schemas."""
    return {"data": {"tools": [_described(tool) for tool in tools]}}


def tool_endpoint(
    tools: Sequence[Tool[Context]], context_of: Callable[[Request, str], Context]
) -> Endpoint:
    """Return the handler of `POST …/tools/{name}`; `context_of` may raise ToolRefused."""

    async def endpoint(request: Request) -> Response:
        identifier = request_id(request)
        started = time.perf_counter()
        try:
            tool = by_name(tools, request.path_params["name"])
            answer = await call(tool, context_of(request, identifier), await read_question(request))
        except ToolRefused as error:
            return refusal(error, identifier)
        meta = {
            "duration_ms": round((time.perf_counter() - started) * 1e3, 3),
            "request_id": identifier,
        }
        return json_response(
            {"data": answer, "meta": meta}, headers={REQUEST_ID_HEADER: identifier}
        )

    return endpoint


def openapi(
    title: str,
    version: str,
    prefix: str,
    tools: Sequence[Tool[Context]],
    extra_paths: Mapping[str, Any],
) -> dict[str, Any]:
    """Return an OpenAPI 3.1 document of the tools below `prefix`, and of further paths."""
    types = [schema for tool in tools for schema in (tool.input, tool.output)]
    found, definitions = schemas(types, "#/components/schemas/{name}") if types else ([], {})
    definitions["Refusal"] = _REFUSAL_SCHEMA
    paths = {
        f"{prefix}/tools/{tool.name}": {"post": _operation(tool, found[2 * i], found[2 * i + 1])}
        for i, tool in enumerate(tools)
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": title, "version": version},
        "security": [{"bearer": []}],
        "paths": {**paths, **extra_paths},
        "components": {
            "schemas": definitions,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }


_REFUSAL_SCHEMA = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["code", "message", "request_id"],
            "properties": {
                **{name: {"type": "string"} for name in ("code", "message", "request_id")},
                "choices": {"type": "array", "items": {"type": "string"}},
            },
        }
    },
}
REFUSAL_RESPONSE = {
    "description": "Refused; the message says why and what to do",
    "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Refusal"}}},
}
_META_SCHEMA = {
    "type": "object",
    "required": ["duration_ms", "request_id"],
    "properties": {"duration_ms": {"type": "number"}, "request_id": {"type": "string"}},
}


def enveloped(data: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of an answer whose `data` has this schema."""
    return {
        "type": "object",
        "required": ["data", "meta"],
        "properties": {"data": data, "meta": _META_SCHEMA},
    }


def _operation(
    tool: Tool[Context], question: dict[str, Any], answer: dict[str, Any]
) -> dict[str, Any]:
    return {
        "operationId": tool.name.replace(".", "_"),
        "summary": tool.summary,
        "description": tool.description,
        "requestBody": {"required": False, "content": {"application/json": {"schema": question}}},
        "responses": {
            "200": {
                "description": "The answer",
                "content": {"application/json": {"schema": enveloped(answer)}},
            },
            **{
                str(status): REFUSAL_RESPONSE for status in (400, 401, 403, 404, 413, 429, 503, 504)
            },
        },
    }


def _described(tool: Tool[Context]) -> dict[str, Any]:
    (question, answer), definitions = schemas([tool.input, tool.output])
    return {
        "name": tool.name,
        "description": tool.description,
        "input_schema": {**question, "$defs": definitions},
        "output_schema": {**answer, "$defs": definitions},
    }
