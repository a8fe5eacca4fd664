"""Tools over MCP: stdio and stateless streamable HTTP from one list. Import it lazily: the SDK takes seconds."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import msgspec
from mcp import types
from mcp.server import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from mcp.server.transport_security import TransportSecuritySettings

from ingero.errors import IngeroError
from ingero.transport.tools import Tool, by_name, call, self_contained_schema


@dataclass(frozen=True, slots=True)
class McpPrompt:
    """A ready-made way to work, listed to assistants; `text` may ask the store before it answers."""

    name: str
    description: str
    text: Callable[[Any], Awaitable[str]]


@dataclass(frozen=True, slots=True)
class McpResource:
    """Something to read before asking, such as the schema."""

    uri: str
    name: str
    description: str
    mime_type: str
    text: Callable[[Any], Awaitable[str]]


Request = ServerRequestContext[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class McpSurface:
    """What one MCP server offers; `context_of` receives the HTTP request, or None over stdio."""

    name: str
    tools: Sequence[Tool[Any]]
    context_of: Callable[[Any], Any]
    prompts: Sequence[McpPrompt] = ()
    resources: Sequence[McpResource] = ()
    instructions: str | None = None

    def server(self) -> Server[Any]:
        """The SDK's server over this surface."""
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

    async def list_tools(self, _: Request, __: types.PaginatedRequestParams | None) -> types.ListToolsResult:
        return types.ListToolsResult(tools=[_describe(tool) for tool in self.tools])

    async def call_tool(self, request: Request, params: types.CallToolRequestParams) -> types.CallToolResult:
        try:
            tool = by_name(self.tools, params.name)
            answer = await call(tool, self.context_of(request.request), params.arguments or {})
        except IngeroError as error:  # a refusal is an answer an assistant can act on
            return types.CallToolResult(content=[types.TextContent(text=str(error))], is_error=True)
        structured = msgspec.to_builtins(answer)
        text = tool.to_text(answer) if tool.to_text else msgspec.json.encode(structured).decode()
        return types.CallToolResult(content=[types.TextContent(text=text)], structured_content=structured)

    async def list_prompts(self, _: Request, __: types.PaginatedRequestParams | None) -> types.ListPromptsResult:
        listed = [types.Prompt(name=prompt.name, description=prompt.description) for prompt in self.prompts]
        return types.ListPromptsResult(prompts=listed)

    async def get_prompt(self, request: Request, params: types.GetPromptRequestParams) -> types.GetPromptResult:
        prompt = _found(self.prompts, "name", params.name)
        text = await prompt.text(self.context_of(request.request))
        message = types.PromptMessage(role="user", content=types.TextContent(text=text))
        return types.GetPromptResult(description=prompt.description, messages=[message])

    async def list_resources(self, _: Request, __: types.PaginatedRequestParams | None) -> types.ListResourcesResult:
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
        content = types.TextResourceContents(uri=resource.uri, mime_type=resource.mime_type, text=text)
        return types.ReadResourceResult(contents=[content])


def http_manager(server: Server[Any]) -> StreamableHTTPSessionManager:
    """The ASGI side: stateless, JSON replies. Enter `manager.run()` around the service, route to `handle_request`.

    Host names are checked by the service in front, which knows what it is called.
    """
    security = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    return StreamableHTTPSessionManager(server, json_response=True, stateless=True, security_settings=security)


async def serve_stdio(server: Server[Any]) -> None:
    """Serve one client on standard input and output until it leaves."""
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


def _describe(tool: Tool[Any]) -> types.Tool:
    return types.Tool(
        name=tool.name,
        description=tool.description,
        input_schema=self_contained_schema(tool.input),
        output_schema=self_contained_schema(tool.output),
        annotations=types.ToolAnnotations(read_only_hint=True),
    )


def _found(items: Sequence[Any], attribute: str, value: str) -> Any:
    for item in items:
        if getattr(item, attribute) == value:
            return item
    raise ValueError(f"no {attribute} {value!r}; there are: {', '.join(getattr(item, attribute) for item in items)}")
