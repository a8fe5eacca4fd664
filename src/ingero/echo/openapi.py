"""The OpenAPI 3.1 document of the question listener."""

import functools
from importlib.metadata import version
from typing import Any, Final

from ingero.contract import api_paths
from ingero.echo.tools.asker import PREFIX
from ingero.echo.tools.catalogue import TOOLS
from ingero.transport.tools.http import REFUSAL_RESPONSE, enveloped, openapi

_OBJECT: Final = {"type": "object"}
_OPEN: Final = (429, 503)
_VERSIONS: Final = {
    "type": "object",
    "additionalProperties": False,
    "required": [
        "supported",
        "deprecated",
        "preferred",
        "binary",
        "capabilities",
        "removal_schedule",
    ],
    "properties": {
        "supported": {"type": "array", "items": {"type": "string"}},
        "deprecated": {"type": "array", "items": {"type": "string"}},
        "preferred": {"type": "string"},
        "binary": {
            "type": "object",
            "required": ["component", "version"],
            "properties": {"component": {"type": "string"}, "version": {"type": "string"}},
        },
        "capabilities": {"type": "array", "items": {"type": "string"}},
        "removal_schedule": {"type": "object", "additionalProperties": {"type": "string"}},
    },
}


@functools.cache
def described() -> dict[str, Any]:
    """Return the document; it is built once, because the tools are fixed."""
    extra = {
        api_paths.ECHO_VERSIONS: {
            "get": {
                **_get("versions", "Versions of this API", _json(_VERSIONS), _OPEN),
                "security": [],
            }
        },
        api_paths.ECHO_TOOLS_LIST: {
            "get": _get("list_tools", "Every tool with its schemas", _json(enveloped(_OBJECT)))
        },
        api_paths.ECHO_OPENAPI: {"get": _get("openapi", "This document", _json(_OBJECT))},
        api_paths.ECHO_HEALTH: {
            "get": _get("health", "State and version of the service", _json(enveloped(_OBJECT)))
        },
        api_paths.ECHO_WHOAMI: {
            "get": _get("whoami", "What this token may see", _json(enveloped(_OBJECT)))
        },
        api_paths.PROMETHEUS: {
            "get": _get(
                "metrics",
                "Echo's own metrics",
                {"text/plain": {"schema": {"type": "string"}}},
                (401, 403, 429, 503),
            )
        },
    }
    document = openapi("Ingero Echo", version("ingero"), api_paths.ECHO_ROOT, TOOLS, extra)
    analysis = document["paths"][api_paths.ECHO_TOOL.format(name=f"{PREFIX}run_analysis")]["post"]
    document["paths"][api_paths.ECHO_SQL] = {
        "post": {**analysis, "operationId": "sql", "summary": "One read-only SELECT"}
    }
    return document


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _get(
    name: str, summary: str, content: dict[str, Any], refusals: tuple[int, ...] = (401, 429, 503)
) -> dict[str, Any]:
    return {
        "operationId": name,
        "summary": summary,
        "responses": {
            "200": {"description": "The answer", "content": content},
            **{str(status): REFUSAL_RESPONSE for status in refusals},
        },
    }
