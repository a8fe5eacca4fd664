"""`ingero nodes`: list the nodes of a fan-out, trust their certificates, check that they answer."""

import asyncio
import sys

import click

from ingero.cli.fanout.ask import FanoutResult, ask_nodes
from ingero.cli.fanout.options import fanout_of, fanout_options
from ingero.cli.fanout.report import INTERRUPTED_STATUS
from ingero.cli.params import AS_JSON
from ingero.cli.show.table import print_json, render_table
from ingero.config.edit import remember_trusted
from ingero.config.ingero import find_config, load_ingero
from ingero.contract.api_paths import NODE_TIME
from ingero.core.clocks.skew import ClockOffset
from ingero.errors import AuthError, Unavailable
from ingero.storage.caller import home
from ingero.transport.connect import failure_text
from ingero.transport.fanout.ask import decode_time
from ingero.transport.fanout.client import NodeReply, Question, peer_fingerprint
from ingero.transport.fanout.failures import NO_SERVER, NOT_DECODABLE
from ingero.transport.fanout.nodes import split_host_port, split_scheme
from ingero.transport.tls import fingerprint_bytes

FANOUT_TIMEOUT_S = 5.0


@click.group()
def command() -> None:
    """List, trust and check the nodes that `query`, `explain` and `export` ask.

    \b
    Examples:
      ingero nodes list
      ingero nodes trust gpu-node-01:8080
      ingero nodes check
    """


@command.command("list")
@AS_JSON
def list_nodes(as_json: bool) -> None:
    """List the nodes of ingero.yaml, and the trusted certificates.

    \b
    Examples:
      ingero nodes list
      ingero nodes list --json
    """
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
@click.option(
    "--fingerprint", help="Trust only this fingerprint; without it you are asked to compare."
)
@click.option(
    "--yes", is_flag=True, help="Trust the certificate that the node shows, without asking."
)
def trust(node: str, fingerprint: str | None, yes: bool) -> None:
    """Remember the certificate of a node by its fingerprint.

    Compare the fingerprint with the one that `ingero dashboard` printed on the node.

    \b
    Examples:
      ingero nodes trust gpu-node-01:8080
      ingero nodes trust gpu-node-01:8080 --yes
    """
    split_host_port(node)
    node = split_scheme(node)[1]  # the form under which the fan-out looks it up
    try:
        seen = asyncio.run(peer_fingerprint(node, 5.0))
    except TimeoutError:
        raise Unavailable(f"{node} does not answer within 5 s; {NO_SERVER}") from None
    except OSError as error:
        why = failure_text(f"https://{node}", error, NO_SERVER)
        raise Unavailable(f"{node} does not answer with TLS: {why}") from None
    if fingerprint is not None and fingerprint_bytes(fingerprint) != fingerprint_bytes(seen):
        raise AuthError(f"{node} shows {seen}, not the fingerprint you gave; nothing was trusted")
    if fingerprint is None and not yes:
        print(f"{node} shows the certificate\n  {seen}")
        if not sys.stdin.isatty():
            raise AuthError(
                "standard input is not a terminal, so nobody can compare it; nothing was trusted; "
                "give --fingerprint or --yes"
            )
        if not click.confirm("Is that what the node printed?"):
            raise AuthError("nothing was trusted")
    path = find_config() or home() / ".config" / "ingero" / "ingero.yaml"
    remember_trusted(path, node, seen)
    print(f"trusted {node}: {seen}\nsaved in {path}")


@command.command()
@AS_JSON
@fanout_options(FANOUT_TIMEOUT_S)
def check(as_json: bool, **fanout: object) -> int:
    """Check which nodes answer, under which name, and with which clock.

    The answer shows how far each clock is off.

    \b
    Examples:
      ingero nodes check
      ingero nodes check --nodes gpu-node-01:8080,gpu-node-02:8080 --json
    """
    options = fanout_of(fanout, load_ingero().fleet, FANOUT_TIMEOUT_S)
    replies: list[NodeReply] = []
    result = ask_nodes(options, (Question(NODE_TIME), replies.append))
    rows = [_checked(reply, result, options.skew_threshold_ms) for reply in replies]
    rows += [
        (node, None, "waiting", None, None, None)
        for node in options.nodes
        if node not in result.answered
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
    return INTERRUPTED_STATUS if result.interrupted else int(good < len(rows))


def _checked(
    reply: NodeReply, result: FanoutResult, skew_threshold_ms: float
) -> tuple[object, ...]:
    if reply.failure is not None:
        return reply.address, None, "silent", None, None, reply.failure
    try:
        decode_time(reply.body)
    except NOT_DECODABLE:
        hint = "this is not the API of a node; is it the port of `ingero dashboard`?"
        return reply.address, None, "no node", None, None, hint
    offset = result.offsets.get(reply.name)
    if offset is None:
        return (
            reply.address,
            reply.name,
            "ok",
            None,
            None,
            "it did not report its time three times; ask again",
        )
    numbers = round(offset.offset_ms, 1) + 0.0, round(offset.rtt_ms, 1)
    return reply.address, reply.name, "ok", *numbers, clock_problem(offset, skew_threshold_ms)


def clock_problem(offset: ClockOffset, threshold_ms: float) -> str | None:
    """Say what to do about a clock, if anything; half a round trip is the error of its offset."""
    error_ms = offset.rtt_ms / 2
    if error_ms > threshold_ms >= abs(offset.offset_ms) - error_ms:
        return f"the round trip is too long to compare clocks closer than {error_ms:.0f} ms"
    if abs(offset.offset_ms) > threshold_ms:
        return "its clock differs from ours; is NTP or PTP running on both?"
    return None
