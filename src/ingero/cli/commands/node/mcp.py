"""`ingero mcp` and `ingero ask`: this node's tools, for an AI assistant and for the shell."""

import asyncio
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from ingero.agent.api.tools.catalogue import AGENT_TOOLS, INSTRUCTIONS, investigate
from ingero.agent.api.tools.context import AgentContext, ToolAnswer, to_text
from ingero.cli.foreground import run_stdio
from ingero.cli.params import AS_JSON
from ingero.cli.settings import TRACE_DB
from ingero.cli.show.table import print_json, print_summaries
from ingero.config.ingero import load_ingero, pagerduty_key, trace_database
from ingero.contract import api_paths
from ingero.contract.names import FLEET_TOKEN_VARIABLE
from ingero.errors import ConfigError
from ingero.storage.caller import home
from ingero.transport.access import Access, Denied
from ingero.transport.bearer import (
    AUTHORIZATION,
    CHALLENGE_HEADER,
    INVALID_CHALLENGE,
    TokenScope,
    keys_from,
    token_from,
)
from ingero.transport.fanout.nodes import FanoutPolicy, client_tls, distinct
from ingero.transport.tools.tool import by_name, call, parse_pairs

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Receive, Scope, Send

MCP_TOKEN_VARIABLE = "INGERO_MCP_BEARER_TOKEN"  # noqa: S105 - the name of a variable, not a token


@click.command()
@click.option(
    "--http",
    "address",
    metavar="ADDR",
    help="Serve HTTPS at ADDR instead of standard input and output.",
)
@TRACE_DB
@click.option(
    "--log",
    "log_file",
    type=click.Path(path_type=Path),
    help="Append the server's log to this file.",
)
@click.option(
    "--mcp-bearer-token", hidden=True, help="Refused: arguments are visible to every user."
)
def command(
    address: str | None, db: Path | None, log_file: Path | None, mcp_bearer_token: str | None
) -> int:
    """Serve this node's tools to an AI assistant over MCP.

    The tools give statistics, causal chains, stacks, SQL, CUDA graphs and the other nodes; the
    prompt `investigate` guides an assistant through them. They are served on standard input and
    output, or with --http as streamable HTTP over TLS at /mcp, where a bearer token is required
    when $INGERO_MCP_BEARER_TOKEN is set.

    Text of traced processes is marked as data. Passages in it that read like instructions to the
    assistant are logged, to standard error or to the file of --log.

    Configuration of a desktop assistant:
    `{"mcpServers": {"ingero": {"command": "ingero", "args": ["mcp"]}}}`

    \b
    Examples:
      ingero mcp                          for a desktop assistant (stdio)
      ingero mcp --http 127.0.0.1:8090    streamable HTTP at /mcp
    """
    if mcp_bearer_token:
        raise ConfigError(
            f"a token on the command line is visible to every user; set ${MCP_TOKEN_VARIABLE}"
        )
    from ingero.cli.show.logs import set_up_logging

    set_up_logging("info", log_file)
    server = _server(trace_database(db), is_local=address is None)
    if address is None:
        return run_stdio(server)
    asyncio.run(_serve_http(server, address))
    return 0


def _server(db: Path, *, is_local: bool) -> Any:
    """Build the MCP server; only this command imports the MCP SDK, which takes seconds."""
    from ingero.transport.tools.mcp import McpPrompt, McpSurface

    context = agent_context(
        db, is_trusted=is_local or token_from(None, MCP_TOKEN_VARIABLE) is not None
    )
    return McpSurface(
        name="ingero",
        tools=AGENT_TOOLS,
        context_of=lambda _: context,
        prompts=[McpPrompt("investigate", "Find out why this GPU node is slow", investigate)],
        instructions=INSTRUCTIONS,
    ).server()


async def _serve_http(server: Any, address: str) -> None:
    from ingero.agent.api.server import serve_until_signal, start_app
    from ingero.transport.tools.mcp import HttpMcp

    keys = keys_from(None, MCP_TOKEN_VARIABLE)
    mcp = HttpMcp(server)
    await mcp.start()
    try:
        serving = await start_app(_guarded(mcp.handle, Access(keys)), address)
        print(
            f"MCP at {serving.url}/mcp\ncertificate fingerprint {serving.fingerprint}",
            file=sys.stderr,
            flush=True,
        )
        if serving.notice:
            print(serving.notice, file=sys.stderr, flush=True)
        if not keys:
            print(
                f"WARNING: anybody who can connect to this port may ask; set ${MCP_TOKEN_VARIABLE}",
                file=sys.stderr,
            )
        await serve_until_signal(serving)
    finally:
        await mcp.stop()


def _guarded(handle: "ASGIApp", access: Access) -> "ASGIApp":
    """Serve MCP at /mcp and check the token, if one is set.

    The answer does not say what was wrong with a token.
    """
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse

    def refusal(request: Request) -> PlainTextResponse | None:
        if request.url.path.rstrip("/") != api_paths.MCP:
            return PlainTextResponse("not here\n", 404)
        address = request.client.host if request.client else None
        admitted = access.check(request.headers.get(AUTHORIZATION), address, TokenScope.READ)
        if not isinstance(admitted, Denied):
            return None
        if admitted.retry_after_s is None:
            return PlainTextResponse("unauthorized\n", 401, {CHALLENGE_HEADER: INVALID_CHALLENGE})
        after = {"Retry-After": str(admitted.retry_after_s)}
        return PlainTextResponse(f"{admitted.message}\n", 429, after)

    async def app(scope: "Scope", receive: "Receive", send: "Send") -> None:
        if scope["type"] == "http":
            await (refusal(Request(scope)) or handle)(scope, receive, send)

    return app


def agent_context(db: Path, *, is_trusted: bool) -> AgentContext:
    """Return what the tools work with, from this machine's configuration.

    A caller without a token over HTTP is not trusted.
    """
    fleet = load_ingero().fleet
    policy = FanoutPolicy(
        tls=client_tls(fleet.ca_cert, fleet.client_cert, fleet.client_key),
        trusted=fleet.trusted,
        # a stranger who asks this node must not ask the others with its token
        token=token_from(fleet.token_file, FLEET_TOKEN_VARIABLE) if is_trusted else None,
    )
    report = Path("logs/test-report.json")
    return AgentContext(
        db=db,
        nodes=tuple(distinct(fleet.nodes)),
        policy=policy,
        play_scenario=_play,
        may_page=is_trusted,
        pagerduty_key=pagerduty_key,
        report=report if report.exists() else home() / ".ingero" / "test-report.json",
    )


def _play(name: str) -> dict[str, Any]:
    from ingero.cli.commands.demos.incident import incident_json

    return incident_json(name)


@click.command()
@click.argument("name", required=False, metavar="[TOOL]")
@click.argument("pairs", nargs=-1, metavar="[KEY=VALUE]...")
@TRACE_DB
@AS_JSON
def ask(name: str | None, pairs: tuple[str, ...], db: Path | None, as_json: bool) -> int:
    """Ask one of the tools of `ingero mcp` from the shell.

    Without a name, the tools are listed. A list is a repeated key (pids=42 pids=43), an object is
    JSON (custom_details={"job": "a"}).

    \b
    Examples:
      ingero ask
      ingero ask get_trace_stats since=10m tsc=false
      ingero ask query_fleet action=chains since=1h
    """
    if name is None:
        print_summaries(
            ("tool", "answers"), {tool.name: tool.summary for tool in AGENT_TOOLS}, as_json
        )
        return 0
    context = agent_context(trace_database(db), is_trusted=True)
    answer = asyncio.run(call(by_name(AGENT_TOOLS, name), context, parse_pairs(pairs), lax=True))
    assert isinstance(answer, ToolAnswer)
    if as_json:
        print_json(msgspec.to_builtins(answer))
    else:
        print(to_text(answer))
    return 0
