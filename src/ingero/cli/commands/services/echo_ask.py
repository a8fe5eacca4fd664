"""`ingero-echo ask` and `ingero-echo mcp`: ask a running Echo, by hand or as an assistant."""

import asyncio
import os
from pathlib import Path
from typing import Any

import click
import msgspec

from ingero.cli.foreground import run_stdio
from ingero.cli.params import AS_JSON, stacked
from ingero.cli.show.table import print_json, print_summaries, render_table
from ingero.config.echo import (
    CA_VARIABLE,
    DEFAULT_DATABASE,
    TOKEN_VARIABLE,
    URL_VARIABLE,
    certificate_beside,
    token_beside,
)
from ingero.storage.runtime import running_service
from ingero.transport.bearer import read_token_file, token_from
from ingero.transport.echo_client import EchoClient, remote
from ingero.transport.endpoint import refuse_plaintext
from ingero.transport.tools.tool import by_name, call, parse_pairs

PREFIX = "fleet.cluster."
WIDEST_CELL = 100
USUAL_URL = "https://127.0.0.1:8081"


_connection_options = stacked(
    click.option(
        "--url",
        metavar="URL",
        help=f"Address of Echo's API; else ${URL_VARIABLE}, else that of an Echo that runs on this "
        f"machine, else {USUAL_URL}.",
    ),
    click.option(
        "--token-file",
        type=click.Path(path_type=Path),
        help=f"File with the bearer token; else ${TOKEN_VARIABLE}.",
    ),
    click.option(
        "--ca-cert",
        type=click.Path(path_type=Path),
        help=f"Authority that signed Echo's certificate; else ${CA_VARIABLE}.",
    ),
    click.option(
        "--insecure", is_flag=True, help="Send the token in plaintext, even to another machine."
    ),
    click.option(
        "--db-path",
        type=click.Path(path_type=Path),
        default=DEFAULT_DATABASE,
        show_default=True,
        help="Database of an Echo on this machine; its token and certificate are beside it.",
    ),
)


def connect(
    url: str | None,
    token_file: Path | None,
    ca_cert: Path | None,
    db_path: Path,
    insecure: bool = False,
) -> EchoClient:
    """Return a client; flags come first, then the environment, then the files of a local Echo.

    Without an address it is the Echo that `ingero up` runs, if it does.
    """
    url = url or os.environ.get(URL_VARIABLE)
    local = running_service("echo") if url is None else None
    if local is not None:
        url = f"https://{local.addresses['mcp']}"
        if db_path == Path(DEFAULT_DATABASE) and local.database:
            db_path = Path(local.database)
    database = db_path.expanduser()
    token = token_from(token_file, TOKEN_VARIABLE)
    if token is None and os.access(token_beside(database), os.R_OK):
        token = read_token_file(token_beside(database))
    if ca_cert is None and CA_VARIABLE in os.environ:
        ca_cert = Path(os.environ[CA_VARIABLE])
    if ca_cert is None and os.access(certificate_beside(database), os.R_OK):
        ca_cert = certificate_beside(database)
    url = url or USUAL_URL
    if token and url.startswith("http://") and not insecure:
        refuse_plaintext(url, "--insecure")
    return EchoClient(url, token, ca_cert)


@click.command()
@click.argument("name", required=False, metavar="[QUESTION]")
@click.argument("pairs", nargs=-1, metavar="[KEY=VALUE]...")
@AS_JSON
@_connection_options
def ask(name: str | None, pairs: tuple[str, ...], as_json: bool, **where: Any) -> int:
    """Ask a running Echo a question.

    The questions are those of the HTTP API and of MCP; without a name they are listed.
    docs/how-to/ask-echo.md explains them.

    \b
    Examples:
      ingero-echo ask                                          list the questions
      ingero-echo ask find_stragglers cluster_id=prod
      ingero-echo ask nccl_summary cluster_id=prod window=10m --json
      ingero-echo ask run_analysis sql="SELECT node_id, count(*) FROM events GROUP BY 1"
    """
    from ingero.echo.tools.catalogue import TOOLS

    if name is None:
        questions = {tool.name.removeprefix(PREFIX): tool.summary for tool in TOOLS}
        print_summaries(("question", "answers"), questions, as_json)
        return 0
    asked = remote(by_name(TOOLS, name if name.startswith(PREFIX) else PREFIX + name))
    answer = msgspec.to_builtins(
        asyncio.run(call(asked, connect(**where), parse_pairs(pairs), lax=True))
    )
    if as_json:
        print_json(answer)
    else:
        print(to_text(answer))
    return 0


@click.command()
@_connection_options
def mcp(**where: Any) -> int:
    """Serve the questions of a running Echo to an AI assistant.

    The questions are served over MCP, on standard input and output.

    \b
    Examples:
      ingero-echo mcp
      ingero-echo mcp --url https://echo.internal:8081
    """
    from ingero.echo.investigate import INSTRUCTIONS, SCHEMA_RESOURCE, investigate_text, read_schema
    from ingero.echo.tools.catalogue import TOOLS
    from ingero.echo.tools.stragglers import StragglersQuestion
    from ingero.echo.tools.summary import SummaryQuestion
    from ingero.transport.tools.mcp import McpPrompt, McpResource, McpSurface

    client = connect(**where)
    tools = [remote(tool) for tool in TOOLS]

    async def prompt(_: EchoClient) -> str:
        stragglers, summary = (
            by_name(tools, PREFIX + name) for name in ("find_stragglers", "summary")
        )
        return await investigate_text(
            lambda: stragglers.answer(client, StragglersQuestion(limit=1)),
            lambda: summary.answer(client, SummaryQuestion()),
        )

    surface = McpSurface(
        name="ingero-echo",
        tools=tools,
        context_of=lambda _: client,
        prompts=[
            McpPrompt(
                "investigate", "Find the node and rank that slow a cluster down, and why", prompt
            )
        ],
        resources=[McpResource(*SCHEMA_RESOURCE, read_schema)],
        instructions=INSTRUCTIONS,
    )
    return run_stdio(surface.server())


def to_text(answer: dict[str, Any]) -> str:
    """Return an answer as text: facts first, then one table per list, then the notes."""
    facts = [
        (name, value if isinstance(value, str) else _cell(value))
        for name, value in answer.items()
        if not isinstance(value, list) and value is not None
    ]
    lines = [render_table(("", ""), facts).split("\n", 2)[2]] if facts else []
    if "columns" in answer:  # SQL: rows belong to their columns
        lines = [render_table(answer["columns"], answer["rows"])]
    else:
        for name, rows in answer.items():
            if isinstance(rows, list) and not rows and name != "notes":
                lines.append(f"{name}: none")
            elif isinstance(rows, list) and name != "notes":
                columns = (
                    list(dict.fromkeys(key for row in rows for key in row))
                    if isinstance(rows[0], dict)
                    else [name]
                )
                cells = [
                    [_cell(row.get(c)) for c in columns] if isinstance(row, dict) else [_cell(row)]
                    for row in rows
                ]
                lines += ["", f"{name}:", render_table(columns, cells)]
    return "\n".join([*lines, *(f"note: {note}" for note in answer.get("notes", []))])


def _cell(value: Any) -> Any:
    if isinstance(value, dict | list):
        value = msgspec.json.encode(value).decode()
    return (
        value
        if not isinstance(value, str) or len(value) <= WIDEST_CELL
        else value[: WIDEST_CELL - 1] + "…"
    )
