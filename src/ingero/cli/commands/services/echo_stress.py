"""`echo-stress`: put load on an Echo and prove that no acknowledged event was lost."""

import asyncio
import json
import os
import secrets
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ingero.cli.dispatch import run_click
from ingero.cli.params import AS_JSON
from ingero.config.echo import CA_VARIABLE, TOKEN_VARIABLE
from ingero.errors import ConfigError

if TYPE_CHECKING:
    from ingero.echo.stress import GrpcSender, HttpSender, StressPlan, StressResult


@click.command("echo-stress")
@click.option(
    "--endpoint",
    required=True,
    metavar="HOST:PORT",
    help="OTLP endpoint of Echo; port 4317 means gRPC, any other HTTP.",
)
@click.option(
    "--node-id",
    default="stress",
    show_default=True,
    help="Name of the sending node; several producers get a number each.",
)
@click.option(
    "--events",
    default=1000,
    show_default=True,
    type=click.IntRange(1),
    help="Events to send in total.",
)
@click.option(
    "--producers",
    default=1,
    show_default=True,
    type=click.IntRange(1, 4096),
    help="Nodes that send at the same time.",
)
@click.option(
    "--rate",
    default=0.0,
    show_default=True,
    type=click.FloatRange(0),
    help="Events per second in total; 0 means unlimited.",
)
@click.option(
    "--chains",
    default=0,
    show_default=True,
    type=click.IntRange(0),
    help="Distinct causal chain ids over all events.",
)
@click.option(
    "--batch",
    default=1,
    show_default=True,
    type=click.IntRange(1, 40000),
    help="Events sent per request.",
)
@click.option(
    "--planted",
    default=0,
    show_default=True,
    type=click.IntRange(0),
    help="Nodes that report one health score below 0.4.",
)
@click.option("--cluster", default="stress", show_default=True, help="Cluster id of the events.")
@click.option(
    "--protocol",
    type=click.Choice(["grpc", "http/protobuf"]),
    help="Protocol to use; chosen by the port if omitted.",
)
@click.option(
    "--verify",
    metavar="URL",
    help="HTTP API of the same Echo, where the acknowledged events are counted.",
)
@click.option("--insecure", is_flag=True, help="Use plaintext for a bare HOST:PORT.")
@AS_JSON
def stress(as_json: bool, **options: Any) -> int:
    """Send events to Echo from many producers and account for every one of them.

    The token comes from $INGERO_ECHO_TOKEN, and the authority that signed Echo's certificate from
    the file named by $INGERO_ECHO_CA. The exit status is 1 when an event was refused for good, or
    when --verify does not find an acknowledged event.

    \b
    Examples:
      echo-stress --node-id=node-h100 --events=1000 --endpoint=echo-service:4317
      echo-stress --producers 8 --events 2000 --chains 80 --endpoint 127.0.0.1:4317
      echo-stress --producers 8 --events 100000 --rate 20000 --batch 100 \\
          --endpoint https://echo:4318 --verify https://echo:8081
    """
    summary = asyncio.run(_run(options, quiet=as_json))
    click.echo(json.dumps(summary, indent=2) if as_json else _text(summary))
    return 1 if summary["lost"] or summary["failures"] else 0


async def _run(options: dict[str, Any], quiet: bool) -> dict[str, Any]:
    from ingero.echo.stress import StressResult, run_stress

    plan = _plan(options)

    def show(text: str) -> None:
        if not quiet and sys.stderr.isatty():
            click.echo(f"\r\x1b[K{text}", nl=False, err=True)

    def progress(so_far: StressResult) -> None:
        show(f"{so_far.acknowledged}/{plan.events} acknowledged, {so_far.retries} retries")

    sender = _sender(options)
    try:
        result = await run_stress(plan, sender, progress)
    finally:
        show("")
        await sender.close()
    found = None
    if options["verify"]:
        found = await _count(options["verify"], plan.run, result.acknowledged)
    return _summary(plan, result, found)


def _plan(options: dict[str, Any]) -> "StressPlan":
    from ingero.echo.stress import StressPlan

    name, count = options["node_id"], options["producers"]
    nodes = tuple(f"{name}-{i}" for i in range(count)) if count > 1 else (name,)
    return StressPlan(
        node_ids=nodes,
        events=options["events"],
        chains=options["chains"],
        batch=options["batch"],
        rate=options["rate"],
        cluster=options["cluster"],
        planted=nodes[: options["planted"]],
        run=secrets.token_hex(4),
    )


def _summary(plan: "StressPlan", result: "StressResult", found: int | None) -> dict[str, Any]:
    return {
        "run": plan.run,
        "nodes": len(plan.node_ids),
        "sent": result.sent,
        "acknowledged": result.acknowledged,
        "found": found,
        "lost": max(0, result.acknowledged - found) if found is not None else 0,
        "duplicates": max(0, found - result.sent) if found is not None else 0,
        "retries": result.retries,
        "failures": result.failures[:10],
        "seconds": round(result.seconds, 3),
        "events_per_s": round(result.acknowledged / max(result.seconds, 1e-9), 1),
        "ack_p50_ms": round(result.percentile_ms(0.5), 3),
        "ack_p99_ms": round(result.percentile_ms(0.99), 3),
    }


def _sender(options: dict[str, Any]) -> "GrpcSender | HttpSender":
    from ingero.echo.stress import GrpcSender, HttpSender
    from ingero.transport.endpoint import Protocol, parse_endpoint
    from ingero.transport.tls import ClientTls, client_context

    protocol = Protocol(options["protocol"]) if options["protocol"] else None
    endpoint = parse_endpoint(options["endpoint"], insecure=options["insecure"], protocol=protocol)
    token = os.environ.get(TOKEN_VARIABLE)
    authority = os.environ.get(CA_VARIABLE)
    if endpoint.protocol is Protocol.GRPC:
        if not endpoint.is_secure:
            return GrpcSender(endpoint.base, token, None)
        if authority is None:
            raise ConfigError(
                f"${CA_VARIABLE} must name the file of the certificate that signed Echo's; "
                "for plaintext, give --insecure"
            )
        return GrpcSender(endpoint.base, token, Path(authority).read_bytes())
    tls = (
        client_context(ClientTls(ca=Path(authority) if authority else None))
        if endpoint.is_secure
        else None
    )
    return HttpSender(endpoint.base, token, tls)


async def _count(url: str, run: str, acknowledged: int) -> int:
    """Ask Echo's API how many events of this run it holds, once it has loaded them."""
    from ingero.echo.stress import count_found

    token, authority = os.environ.get(TOKEN_VARIABLE), os.environ.get(CA_VARIABLE)
    return await count_found(url, token, authority, run, acknowledged)


def _text(summary: dict[str, Any]) -> str:
    lines = [
        f"{name.replace('_', ' '):<14} {value}"
        for name, value in summary.items()
        if name != "failures"
    ]
    lines += [f"failed: {failure}" for failure in summary["failures"]]
    if summary["lost"]:
        lines.append(f"LOST: {summary['lost']} acknowledged events were not found")
    elif summary["found"] is not None:
        lines.append("every acknowledged event was found")
    return "\n".join(lines)


def main() -> int:
    """Run the console script."""
    return run_click(stress, sys.argv[1:], "echo-stress")
