"""`ingero nodes`: the nodes a fan-out asks, whose certificates are trusted, and whether they answer."""

import asyncio
import sys
from pathlib import Path

import click
import yaml

from ingero.cli.fleet_ask import each_reply
from ingero.cli.fleet_options import FleetOptions, fleet_of, fleet_options
from ingero.cli.table import coloured, print_json, render_table
from ingero.config.ingero import find_config, load_ingero
from ingero.config.loader import load_text
from ingero.errors import ConfigError, Unavailable
from ingero.storage.private_file import replace_file
from ingero.storage.trace_path import home
from ingero.transport.fanout import NodeReply, Question, peer_fingerprint
from ingero.transport.nodes import split_host_port

DEFAULT_TIMEOUT = "5s"


@click.group()
def command() -> None:
    """The nodes that `query`, `explain` and `export` ask.

    \b
    Examples:
      ingero nodes list
      ingero nodes trust gpu-node-01:8080
      ingero nodes check
    """


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_nodes(as_json: bool) -> None:
    """Nodes of ingero.yaml, and whether their certificate is trusted by fingerprint."""
    fleet = load_ingero().fleet
    rows = [(node, fleet.trusted.get(node, "")) for node in dict.fromkeys([*fleet.nodes, *fleet.trusted])]
    if as_json:
        print_json([{"node": node, "fingerprint": print_of or None} for node, print_of in rows])
    elif rows:
        print(render_table(("node", "trusted fingerprint"), [(node, print_of or "–") for node, print_of in rows]))
    else:
        print("no nodes: list them under fleet.nodes in ingero.yaml, or name them with --nodes")


@command.command()
@click.argument("node", metavar="HOST:PORT")
@click.option("--fingerprint", help="Trust only this one; without it you are asked to compare.")
@click.option("--yes", is_flag=True, help="Trust what the node shows, without asking.")
def trust(node: str, fingerprint: str | None, yes: bool) -> None:
    """Remember a node's certificate. Compare the fingerprint with what `ingero dashboard` printed on the node."""
    split_host_port(node)
    try:
        seen = asyncio.run(peer_fingerprint(node, 5.0))
    except (OSError, TimeoutError) as error:
        raise Unavailable(f"{node} does not answer with TLS: {error or 'no answer within 5 s'}") from None
    if fingerprint is not None and fingerprint.upper() != seen:
        raise Unavailable(f"{node} shows {seen}, not the fingerprint you gave; nothing was trusted")
    if fingerprint is None and not yes:
        print(f"{node} shows the certificate\n  {seen}")
        click.confirm("Is that what the node printed?", abort=True)
    path = find_config() or home() / ".config" / "ingero" / "ingero.yaml"
    _remember(path, node, seen)
    print(f"trusted {node}: {seen}\nsaved in {path}")


@command.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@fleet_options(DEFAULT_TIMEOUT)
def check(as_json: bool, **fleet: object) -> int:
    """Ask every node for the time: who answers, under which name, how far its clock is off."""
    options = fleet_of(fleet, load_ingero().fleet, DEFAULT_TIMEOUT)
    replies: list[NodeReply] = []
    offsets = asyncio.run(each_reply(options, Question("/api/v1/time"), replies.append))
    rows = [_checked(reply, offsets.get(reply.name), options) for reply in replies]
    if as_json:
        keys = ("address", "name", "state", "clock_offset_ms", "round_trip_ms", "problem")
        print_json([dict(zip(keys, row, strict=True)) for row in rows])
    else:
        shown = [tuple("–" if value is None else value for value in row) for row in rows]
        print(render_table(("address", "name", "state", "clock ms", "round trip ms", "what to do"), shown))
    silent = sum(reply.failure is not None for reply in replies)
    if not as_json:
        text = f"\n  {len(replies) - silent} of {len(replies)} node(s) answer"
        print(coloured(text, "31") if silent else text, file=sys.stderr)
    return 1 if silent else 0


def _checked(reply: NodeReply, offset: object, options: FleetOptions) -> tuple[object, ...]:
    if reply.failure is not None:
        return reply.address, None, "silent", None, None, reply.failure
    ahead = getattr(offset, "offset_ms", None)
    problem = None
    if ahead is not None and abs(ahead) > options.skew_threshold_ms:
        problem = "its clock differs from ours; is NTP or PTP running on both?"
    rtt = getattr(offset, "rtt_ms", None)
    rounded = [None if value is None else round(value, 1) for value in (ahead, rtt)]
    return reply.address, reply.name, "ok", *rounded, problem


def _remember(path: Path, node: str, fingerprint: str) -> None:
    """Write one line into ingero.yaml and leave everything else in it as it is, comments included."""
    text = path.read_text() if path.exists() else ""
    changed = add_trusted(text, node, fingerprint)
    from ingero.config.ingero import IngeroConfig

    load_text(IngeroConfig, changed, str(path))  # never replace a good file by one that does not load
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, changed.encode())


def add_trusted(text: str, node: str, fingerprint: str) -> str:
    """`text` of an ingero.yaml with `fleet.trusted[node]` set."""
    line = f'    "{node}": "{fingerprint}"'
    root = yaml.compose(text, Loader=yaml.SafeLoader)
    lines = text.splitlines()
    fleet = _child(root, "fleet")
    if fleet is None:
        return "\n".join([*lines, "fleet:", "  trusted:", line, ""])
    trusted = _child(fleet, "trusted")
    for block in (fleet, trusted):
        if isinstance(block, yaml.MappingNode) and block.flow_style:
            raise ConfigError(
                "ingero.yaml writes fleet in one line; write it as an indented block so that it can be extended"
            )
    if not isinstance(fleet, yaml.MappingNode):
        at = next(i for i, content in enumerate(lines) if content.startswith("fleet:")) + 1
        return "\n".join([*lines[:at], "  trusted:", line, *lines[at:], ""])
    indent = " " * fleet.value[0][0].start_mark.column
    if not isinstance(trusted, yaml.MappingNode):
        at = fleet.value[0][0].start_mark.line
        return "\n".join([*lines[:at], f"{indent}trusted:", f"{indent}  {line.strip()}", *lines[at:], ""])
    deeper = " " * trusted.value[0][0].start_mark.column
    for key, _ in trusted.value:
        if key.value == node:
            lines[key.start_mark.line] = f"{deeper}{line.strip()}"
            return "\n".join([*lines, ""])
    at = trusted.value[0][0].start_mark.line
    return "\n".join([*lines[:at], f"{deeper}{line.strip()}", *lines[at:], ""])


def _child(node: yaml.Node | None, key: str) -> yaml.Node | None:
    if not isinstance(node, yaml.MappingNode):
        return None
    return next((value for name, value in node.value if name.value == key), None)
