"""Tools over MCP: stdio and stateless streamable HTTP.

Import this module lazily, because importing the SDK takes seconds.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import msgspec
from mcp import MCPError, types
from mcp.server import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings
from starlette.requests import Request as StarletteRequest
from starlette.types import Message, Receive, Scope, Send

from ingero.errors import IngeroError, TooLarge
from ingero.transport.bounded import read_request_body
from ingero.transport.http import error_response
from ingero.transport.tools.tool import Tool, by_name, call, self_contained_schema

log = logging.getLogger(__name__)
MAX_MESSAGE_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class McpPrompt:
    """A prompt that is listed to assistants; `text` may query the store."""

    name: str
    description: str
    text: Callable[[Any], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class McpResource:
    """A document to read before asking, such as the schema."""

    uri: str
    name: str
    description: str
    mime_type: str
    text: Callable[[Any], Awaitable[str]]


Request = ServerRequestContext[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class McpSurface:
    """What one MCP server offers; `context_of` gets the HTTP request, or None over stdio."""

    name: str
    tools: Sequence[Tool[Any]]
    context_of: Callable[[Any], Any]
    prompts: Sequence[McpPrompt] = ()
    resources: Sequence[McpResource] = ()
    instructions: str | None = None

    def server(self) -> Server[Any]:
        """Return the SDK's server for these tools, prompts and resources."""
        return Server(
            self.name,
            version=version("ingero"),
            instructions=self.instructions,
            on_list_tools=self.list_tools,
            on_call_tool=self.call_tool,
            on_list_prompts=self.list_prompts,
            on_get_prompt=self.get_prompt,
            on_list_resources=self.list_resources,
            on_read_resource=self.read_resource,
        )

    async def list_tools(
        self, _: Request, __: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_describe(tool) for tool in self.tools])

    async def call_tool(
        self, request: Request, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        try:
            tool = by_name(self.tools, params.name)
            answer = await call(tool, self.context_of(request.request), params.arguments or {})
        except IngeroError as error:  # an assistant can act on a refusal
            return _refused(str(error))
        except Exception:  # a defect must not end the loop that serves tools
            log.exception("tool_failed", extra={"tool": params.name})
            return _refused("an error of ingero itself; its log has the details")
        structured = msgspec.to_builtins(answer)
        text = tool.to_text(answer) if tool.to_text else msgspec.json.encode(structured).decode()
        return types.CallToolResult(
            content=[types.TextContent(text=text)], structured_content=structured
        )

    async def list_prompts(
        self, _: Request, __: types.PaginatedRequestParams | None
    ) -> types.ListPromptsResult:
        listed = [
            types.Prompt(name=prompt.name, description=prompt.description)
            for prompt in self.prompts
        ]
        return types.ListPromptsResult(prompts=listed)

    async def get_prompt(
        self, request: Request, params: types.GetPromptRequestParams
    ) -> types.GetPromptResult:
        prompt = _found(self.prompts, "name", params.name)
        text = await prompt.text(self.context_of(request.request))
        message = types.PromptMessage(role="user", content=types.TextContent(text=text))
        return types.GetPromptResult(description=prompt.description, messages=[message])

    async def list_resources(
        self, _: Request, __: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        listed = [
            types.Resource(uri=r.uri, name=r.name, description=r.description, mime_type=r.mime_type)
            for r in self.resources
        ]
        return types.ListResourcesResult(resources=listed)

    async def read_resource(
        self, request: Request, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        resource = _found(self.resources, "uri", str(params.uri))
        text = await resource.text(self.context_of(request.request))
        content = types.TextResourceContents(
            uri=resource.uri, mime_type=resource.mime_type, text=text
        )
        return types.ReadResourceResult(contents=[content])


class HttpMcp:
    """MCP over HTTP, stateless, with JSON replies: `start` it, serve `handle`, then `stop` it.

    Host names are checked by the service in front, which knows what it is called.
    """

    def __init__(self, server: Server[Any]) -> None:
        security = TransportSecuritySettings(enable_dns_rebinding_protection=False)
        self._manager = StreamableHTTPSessionManager(
            server, json_response=True, stateless=True, security_settings=security
        )
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    async def handle(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; the SDK itself would read a body of any size.

        Nothing is ever sent without a request, so a stream that GET asks for would stay empty, and
        be held for as long as the client likes.
        """
        if scope["method"] != "POST":
            await error_response("send messages with POST", 405, {"Allow": "POST"})(
                scope, receive, send
            )
            return
        try:
            body = await read_request_body(StarletteRequest(scope, receive), MAX_MESSAGE_BYTES)
        except TooLarge as error:
            await error_response(str(error), 413)(scope, receive, send)
            return
        parts = iter([{"type": "http.request", "body": body, "more_body": False}])

        async def receive_again() -> Message:
            return next(parts, None) or await receive()

        await self._manager.handle_request(scope, receive_again, send)

    async def start(self) -> None:
        """Start the session manager and return when it is ready."""
        ready = asyncio.Event()
        self._task = asyncio.create_task(self._run(ready), name="mcp")
        await ready.wait()

    async def _run(self, ready: asyncio.Event) -> None:
        """Run the SDK's task group, which must stay in one task."""
        async with self._manager.run():
            ready.set()
            await self._stopping.wait()

    async def stop(self) -> None:
        """Stop the session manager; stop the listener first."""
        self._stopping.set()
        if self._task is not None:
            await self._task


async def serve_stdio(server: Server[Any]) -> None:
    """Serve one client on standard input and output until it disconnects."""
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


def _refused(text: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=text)], is_error=True)


def _describe(tool: Tool[Any]) -> types.Tool:
    return types.Tool(
        name=tool.name,
        description=tool.description,
        input_schema=self_contained_schema(tool.input),
        output_schema=self_contained_schema(tool.output),
        annotations=types.ToolAnnotations(read_only_hint=not tool.acts, destructive_hint=False),
    )


def _found(items: Sequence[Any], attribute: str, value: str) -> Any:
    for item in items:
        if getattr(item, attribute) == value:
            return item
    there = ", ".join(getattr(item, attribute) for item in items)
    raise MCPError(types.INVALID_PARAMS, f"no {attribute} {value!r}; there are: {there}")
