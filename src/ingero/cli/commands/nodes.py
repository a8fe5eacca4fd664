"""`ingero nodes`: the nodes a fan-out asks, whose certificates are trusted, and whether they answer."""

import asyncio
import json
import sys
from pathlib import Path

import click
import yaml

from ingero.cli.fanout.ask import INTERRUPTED_STATUS, Course, ask_nodes
from ingero.cli.fanout.options import fanout_of, fanout_options
from ingero.cli.params import AS_JSON
from ingero.cli.show.table import print_json, render_table
from ingero.config.ingero import find_config, load_ingero
from ingero.config.loader import load_text
from ingero.core.clocks.skew import ClockOffset
from ingero.errors import AuthError, ConfigError, Unavailable
from ingero.files import replace_file
from ingero.storage.caller import home
from ingero.transport.fanout.ask import NodeReply, Question, decode_time, peer_fingerprint
from ingero.transport.fanout.failures import NOT_DECODABLE
from ingero.transport.fanout.nodes import split_host_port, split_scheme
from ingero.transport.tls import fingerprint_bytes

FANOUT_TIMEOUT_S = 5.0


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
@AS_JSON
def list_nodes(as_json: bool) -> None:
    """Nodes of ingero.yaml. With the certificates that are trusted by fingerprint."""
    fleet = load_ingero().fleet
    rows = [
        (node, fleet.trusted.get(node, ""))
        for node in dict.fromkeys([*fleet.nodes, *fleet.trusted])
    ]
    if as_json:
        print_json([{"node": node, "fingerprint": print_of or None} for node, print_of in rows])
    elif rows:
        print(
            render_table(
                ("node", "trusted fingerprint"),
                [(node, print_of or "–") for node, print_of in rows],
            )
        )
    else:
        print("no nodes: list them under fleet.nodes in ingero.yaml, or name them with --nodes")


@command.command()
@click.argument("node", metavar="HOST:PORT")
@click.option("--fingerprint", help="Trust only this one; without it you are asked to compare.")
@click.option("--yes", is_flag=True, help="Trust what the node shows, without asking.")
def trust(node: str, fingerprint: str | None, yes: bool) -> None:
    """Remember a node's certificate. Compare the fingerprint with what `ingero dashboard` printed on the node."""
    split_host_port(node)
    node = split_scheme(node)[1]  # as the fan-out looks it up
    try:
        seen = asyncio.run(peer_fingerprint(node, 5.0))
    except (OSError, TimeoutError) as error:
        raise Unavailable(
            f"{node} does not answer with TLS: {error or 'no answer within 5 s'}"
        ) from None
    if fingerprint is not None and fingerprint_bytes(fingerprint) != fingerprint_bytes(seen):
        raise AuthError(f"{node} shows {seen}, not the fingerprint you gave; nothing was trusted")
    if fingerprint is None and not yes:
        print(f"{node} shows the certificate\n  {seen}")
        if not sys.stdin.isatty():
            raise AuthError(
                "nobody is here to compare it: nothing was trusted; give --fingerprint, or --yes"
            )
        if not click.confirm("Is that what the node printed?"):
            raise AuthError("nothing was trusted")
    path = find_config() or home() / ".config" / "ingero" / "ingero.yaml"
    _remember(path, node, seen)
    print(f"trusted {node}: {seen}\nsaved in {path}")


@command.command()
@AS_JSON
@fanout_options(FANOUT_TIMEOUT_S)
def check(as_json: bool, **fanout: object) -> int:
    """Ask every node for the time. Who answers, under which name, how far its clock is off."""
    options = fanout_of(fanout, load_ingero().fleet, FANOUT_TIMEOUT_S)
    replies: list[NodeReply] = []
    course = ask_nodes(options, (Question("/api/v1/time"), replies.append))
    rows = [_checked(reply, course, options.skew_threshold_ms) for reply in replies]
    rows += [
        (node, None, "waiting", None, None, None)
        for node in options.nodes
        if node not in course.heard
    ]
    good = sum(row[2] == "ok" for row in rows)
    if as_json:
        keys = ("address", "name", "state", "clock_offset_ms", "round_trip_ms", "problem")
        print_json([dict(zip(keys, row, strict=True)) for row in rows])
    else:
        shown = [tuple("–" if value is None else value for value in row) for row in rows]
        print(
            render_table(
                ("address", "name", "state", "clock ms", "round trip ms", "what to do"), shown
            )
        )
        print(f"\n  {good} of {len(rows)} node(s) answer", file=sys.stderr)
    return INTERRUPTED_STATUS if course.interrupted else int(good < len(rows))


def _checked(reply: NodeReply, course: Course, skew_threshold_ms: float) -> tuple[object, ...]:
    if reply.failure is not None:
        return reply.address, None, "silent", None, None, reply.failure
    try:
        decode_time(reply.body)
    except NOT_DECODABLE:
        hint = "something answers there, but it is no node; is that the port of `ingero dashboard`?"
        return reply.address, None, "no node", None, None, hint
    offset = course.offsets.get(reply.name)
    if offset is None:
        return (
            reply.address,
            reply.name,
            "ok",
            None,
            None,
            "it did not tell its time three times; ask again",
        )
    numbers = round(offset.offset_ms, 1) + 0.0, round(offset.rtt_ms, 1)
    return reply.address, reply.name, "ok", *numbers, clock_problem(offset, skew_threshold_ms)


def clock_problem(offset: ClockOffset, threshold_ms: float) -> str | None:
    """What to do about a clock, if anything: half a round trip is the error of its offset."""
    error_ms = offset.rtt_ms / 2
    if error_ms > threshold_ms >= abs(offset.offset_ms) - error_ms:
        return f"the round trip is too long to compare clocks closer than {error_ms:.0f} ms"
    if abs(offset.offset_ms) > threshold_ms:
        return "its clock differs from ours; is NTP or PTP running on both?"
    return None


def _remember(path: Path, node: str, fingerprint: str) -> None:
    """Write one line into ingero.yaml and leave everything else in it as it is, comments included."""
    text = path.read_text() if path.exists() else ""
    changed = add_trusted(text, node, fingerprint)
    from ingero.config.ingero import IngeroConfig

    load_text(
        IngeroConfig, changed, str(path)
    )  # never replace a good file by one that does not load
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, changed.encode())


def add_trusted(text: str, node: str, fingerprint: str) -> str:
    """`text` of an ingero.yaml with `fleet.trusted[node]` set, or ConfigError where that needs a person."""
    before = yaml.safe_load(text)
    changed = _with_trusted(text, json.dumps(node), json.dumps(fingerprint), node)
    wanted = dict(before or {}) if isinstance(before or {}, dict) else {}
    fleet = dict(wanted.get("fleet") or {})
    wanted["fleet"] = fleet | {"trusted": dict(fleet.get("trusted") or {}) | {node: fingerprint}}
    try:
        after = yaml.safe_load(changed)
    except yaml.YAMLError:
        after = None
    if after != wanted:
        raise ConfigError(
            f'ingero.yaml is written in a way we cannot extend; under fleet.trusted, add "{node}": "{fingerprint}"'
        )
    return changed


def _with_trusted(text: str, key: str, value: str, node: str) -> str:
    """Only the place where something is added changes; every other character stays."""
    fleet = _child(yaml.compose(text, Loader=yaml.SafeLoader), "fleet")
    if fleet is None:
        return f"{text}{'' if not text or text.endswith(chr(10)) else chr(10)}fleet:\n  trusted:\n    {key}: {value}\n"
    if not isinstance(fleet, yaml.MappingNode):
        return _insert(
            text, fleet.start_mark.index, fleet.end_mark.index, f"\n  trusted:\n    {key}: {value}"
        )
    trusted = _child(fleet, "trusted")
    if not isinstance(trusted, yaml.MappingNode):
        if trusted is not None:
            indent = " " * (fleet.value[0][0].start_mark.column + 2)
            return _insert(
                text, trusted.start_mark.index, trusted.end_mark.index, f"\n{indent}{key}: {value}"
            )
        return _before(text, fleet, f"trusted:\n{{indent}}  {key}: {value}")
    known = next((held for name, held in trusted.value if name.value == node), None)
    if known is not None:
        return _insert(text, known.start_mark.index, known.end_mark.index, value)
    return _before(text, trusted, f"{key}: {value}")


def _before(text: str, block: yaml.MappingNode, line: str) -> str:
    """A line ahead of a block's first key, indented like it."""
    if block.flow_style or not block.value:
        return text  # in braces: a person has to do it
    first = block.value[0][0].start_mark
    indent = " " * first.column
    return _insert(text, first.index, first.index, line.replace("{indent}", indent) + "\n" + indent)


def _insert(text: str, begin: int, end: int, addition: str) -> str:
    return text[:begin] + addition + text[end:]


def _child(node: yaml.Node | None, key: str) -> yaml.Node | None:
    if not isinstance(node, yaml.MappingNode):
        return None
    return next((value for name, value in node.value if name.value == key), None)
