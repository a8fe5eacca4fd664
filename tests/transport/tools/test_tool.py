"""One list of typed questions over HTTP, over MCP and on the command line."""

from typing import Annotated, Any

import httpx2
import jsonschema
import msgspec
import pytest
from mcp import Client, MCPError
from starlette.applications import Starlette
from starlette.routing import Route
from starlette.testclient import TestClient

from ingero.transport.tools.http import list_tools, openapi, tool_endpoint
from ingero.transport.tools.mcp import HttpMcp, McpPrompt, McpResource, McpSurface
from ingero.transport.tools.tool import (
    Tool,
    ToolRefused,
    by_name,
    call,
    parse_pairs,
    self_contained_schema,
    tool,
)


class Question(msgspec.Struct, forbid_unknown_fields=True):
    cluster_id: str
    limit: Annotated[int, msgspec.Meta(ge=1, le=10, description="rows")] = 3


class Row(msgspec.Struct):
    node: str


class Answer(msgspec.Struct):
    rows: list[Row]
    truncated: bool


async def nodes(context: str, question: Question) -> Answer:
    """Nodes of a cluster.

    Ask this first.
    """
    if question.cluster_id == "secret":
        raise ToolRefused(
            "tenant_scoped_bearer_refused", "this token may not see cluster secret", status=403
        )
    return Answer(
        [Row(f"{context}-{question.cluster_id}-{i}") for i in range(question.limit)], False
    )


TOOLS: list[Tool[str]] = [tool("fleet.nodes", nodes)]


def http_client() -> TestClient:
    routes = [
        Route(
            "/t/tools/{name}",
            tool_endpoint(TOOLS, lambda request, identifier: "ctx"),
            methods=["POST"],
        )
    ]
    return TestClient(Starlette(routes=routes))


def test_http_call_answers_in_the_envelope() -> None:
    reply = http_client().post(
        "/t/tools/fleet.nodes", json={"cluster_id": "a", "limit": 1}, headers={"X-Request-Id": "r1"}
    )
    assert reply.json()["data"] == {"rows": [{"node": "ctx-a-0"}], "truncated": False}
    assert reply.json()["meta"]["request_id"] == "r1" == reply.headers["x-request-id"]


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b'{"cluster_id": "a", "limit": 99}', 400, "bad_argument"),
        (b'{"cluster": "a"}', 400, "bad_argument"),
        (b'{"cluster_id": 1}', 400, "bad_argument"),
        (b"[", 400, "bad_json"),
        (b"[1]", 400, "bad_json"),
        (b"x" * ((1 << 20) + 1), 413, "too_large"),
        (b'{"cluster_id": "secret"}', 403, "tenant_scoped_bearer_refused"),
    ],
)
def test_http_refusals_have_one_envelope(body: bytes, status: int, code: str) -> None:
    reply = http_client().post("/t/tools/fleet.nodes", content=body)
    assert (reply.status_code, reply.json()["error"]["code"]) == (status, code)


def test_a_refusal_says_what_to_write_instead() -> None:
    client = http_client()
    wrong = client.post("/t/tools/fleet.nodes", json={"cluster_id": "a", "limit": 99}).json()[
        "error"
    ]["message"]
    assert wrong == "fleet.nodes: limit must be a whole number of at most 10, not 99; limit: rows"
    typo = client.post("/t/tools/fleet.node").json()["error"]["message"]
    assert typo == "no tool 'fleet.node'; did you mean fleet.nodes?"


def test_unknown_tool_lists_what_there_is() -> None:
    reply = http_client().post("/t/tools/nope", json={})
    assert reply.status_code == 404
    assert "fleet.nodes" in reply.json()["error"]["message"]
    with pytest.raises(ToolRefused, match="no tool has a name of 201 characters"):
        by_name(TOOLS, "n" * 201)


def test_f086_answers_validate_against_the_published_schema() -> None:
    listed = list_tools(TOOLS)["data"]["tools"][0]
    answer = http_client().post("/t/tools/fleet.nodes", json={"cluster_id": "a"}).json()["data"]
    jsonschema.Draft202012Validator(listed["output_schema"]).validate(answer)
    assert listed["description"] == "Nodes of a cluster.\n\nAsk this first."


def test_f085_openapi_is_31_and_names_every_tool() -> None:
    document = openapi("Echo", "1.0", "/t", TOOLS, {})
    assert document["openapi"].startswith("3.1")
    assert set(document["paths"]) == {"/t/tools/fleet.nodes"}


async def test_command_line_words_become_arguments() -> None:
    answer = await call(TOOLS[0], "cli", parse_pairs(["cluster_id=a", "limit=2"]), lax=True)
    assert msgspec.to_builtins(answer)["rows"] == [{"node": "cli-a-0"}, {"node": "cli-a-1"}]
    with pytest.raises(ToolRefused, match="is not key=value"):
        parse_pairs(["x"])
    assert parse_pairs(["a=1", "a=2"]) == {"a": ["1", "2"]}


class Shapes(msgspec.Struct):
    pids: Annotated[list[int], msgspec.Meta(max_length=3)] = []
    details: dict[str, Any] = {}
    text: str = ""


class Echoed(msgspec.Struct):
    shapes: Shapes


async def echo(_: str, question: Shapes) -> Echoed:
    """What was understood."""
    return Echoed(question)


@pytest.mark.parametrize(
    ("words", "understood"),
    [
        (["pids=42"], Shapes([42])),
        (["pids=42", "pids=43"], Shapes([42, 43])),
        (["pids=[42, 43]"], Shapes([42, 43])),
        (['details={"job": [1]}', "text=[1]"], Shapes(details={"job": [1]}, text="[1]")),
    ],
)
async def test_lists_and_objects_fit_on_a_command_line(
    words: list[str], understood: Shapes
) -> None:
    assert await call(tool("echo", echo), "", parse_pairs(words), lax=True) == Echoed(understood)


async def test_an_object_that_is_none_is_refused_by_name() -> None:
    for words, why in (
        (["details={"], "details is not JSON"),
        (["details=1"], "echo: details must be an object, not 1$"),
        (["pids=x"], r"echo: pids\[0\] must be a whole number, not 'x'"),
        (["pids=1", "pids=x"], r"echo: pids\[1\] must be a whole number, not 'x'"),
        (["pids=1"] * 4, "echo: pids must be a list of a length of at most 3, not"),
    ):
        with pytest.raises(ToolRefused, match=why):
            await call(tool("echo", echo), "", parse_pairs(words), lax=True)


async def broken(_: str, __: Shapes) -> Echoed:
    """Never answers."""
    raise KeyError("secret")


async def test_a_defect_is_an_answer_and_a_line_in_the_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    tools = [tool("broken", broken), tool("press", echo, acts=True)]
    async with Client(
        McpSurface(name="t", tools=tools, context_of=lambda _: "").server()
    ) as client:
        result = await client.call_tool("broken", {})
        hints = {
            one.name: one.annotations.read_only_hint for one in (await client.list_tools()).tools
        }
        with pytest.raises(MCPError, match="no name 'nope'; there are: "):
            await client.get_prompt("nope")
    assert (result.is_error, result.content[0].text) == (
        True,
        "an error of ingero itself; its log has the details",
    )
    assert "tool_failed" in caplog.messages
    assert hints == {"broken": True, "press": False}, (
        "assistants ask their person before a tool acts"
    )


async def prompt_text(context: str) -> str:
    return f"Start with the summary of {context}."


def mcp_server() -> object:
    prompts = [McpPrompt("investigate", "Find the slow node", prompt_text)]
    resources = [McpResource("schema://events", "schema", "Tables", "text/plain", prompt_text)]
    surface = McpSurface(
        name="ingero",
        tools=TOOLS,
        context_of=lambda request: "mcp" if request is None else "http",
        prompts=prompts,
        resources=resources,
    )
    return surface.server()


async def check_client(client: Client, context: str) -> None:
    listed = await client.list_tools()
    assert [listed_tool.name for listed_tool in listed.tools] == ["fleet.nodes"]
    result = await client.call_tool("fleet.nodes", {"cluster_id": "a", "limit": 1})
    assert result.structured_content == {"rows": [{"node": f"{context}-a-0"}], "truncated": False}
    refused = await client.call_tool("fleet.nodes", {"cluster_id": "secret"})
    assert refused.is_error
    prompt = await client.get_prompt("investigate")
    assert context in prompt.messages[0].content.text
    resource = await client.read_resource("schema://events")
    assert context in resource.contents[0].text


async def test_official_client_in_memory() -> None:
    async with Client(mcp_server()) as client:
        await check_client(client, "mcp")


async def test_official_client_over_streamable_http() -> None:
    from mcp.client.streamable_http import streamable_http_client

    mcp = HttpMcp(mcp_server())

    async def app(scope, receive, send) -> None:
        await mcp.handle(scope, receive, send)

    await mcp.start()
    async with (
        httpx2.AsyncClient(transport=httpx2.ASGITransport(app)) as http,
        Client(streamable_http_client("http://t/", http_client=http)) as client,
    ):
        await check_client(client, "http")
        for method in ("GET", "DELETE", "HEAD"):  # a stream would be held without an end
            reply = await http.request(method, "http://t/", headers={"Accept": "text/event-stream"})
            assert (reply.status_code, reply.headers["allow"]) == (405, "POST")
    await mcp.stop()


def test_schema_is_an_object_that_needs_nothing_beside_it() -> None:
    schema = self_contained_schema(Answer)
    assert schema["type"] == "object"
    assert schema["$defs"].keys() == {"Row"}
