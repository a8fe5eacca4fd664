"""`echo-stress`: load for an Echo, and proof that nothing was lost."""

import asyncio
import json
import os
import secrets
import sys
from pathlib import Path
from typing import Any

import click

from ingero.cli.dispatch import run_click
from ingero.cli.params import AS_JSON
from ingero.config.echo import CA_VARIABLE, TOKEN_VARIABLE
from ingero.errors import ConfigError

EPILOG = """\b
Examples:
  echo-stress --node-id=node-h100 --events=1000 --endpoint=echo-service:4317
  echo-stress --producers 8 --events 2000 --chains 80 --endpoint 127.0.0.1:4317
  echo-stress --producers 8 --events 100000 --rate 20000 --batch 100 \\
      --endpoint https://echo:4318 --verify https://echo:8081
\b
The token comes from INGERO_ECHO_TOKEN, the authority that signed Echo's certificate from the file in INGERO_ECHO_CA.
Exits 1 when an event was refused for good, or with --verify when one that was acknowledged is not found.
"""


@click.command("echo-stress", epilog=EPILOG)
@click.option(
    "--endpoint", required=True, metavar="HOST:PORT", help="Port 4317 is gRPC, anything else HTTP."
)
@click.option(
    "--node-id",
    default="stress",
    show_default=True,
    help="Name of the node; several get a number each.",
)
@click.option(
    "--events", default=1000, show_default=True, type=click.IntRange(1), help="Events in all."
)
@click.option(
    "--producers",
    default=1,
    show_default=True,
    type=click.IntRange(1, 4096),
    help="Nodes sending at once.",
)
@click.option(
    "--rate",
    default=0.0,
    type=click.FloatRange(0),
    help="Events per second in all; 0 is unlimited.",
)
@click.option(
    "--chains", default=0, type=click.IntRange(0), help="Distinct causal chain ids over all events."
)
@click.option(
    "--batch",
    default=1,
    show_default=True,
    type=click.IntRange(1, 40000),
    help="Events per request.",
)
@click.option(
    "--planted",
    default=0,
    type=click.IntRange(0),
    help="How many nodes report one score below 0.4.",
)
@click.option("--cluster", default="stress", show_default=True, help="Cluster id.")
@click.option(
    "--protocol",
    type=click.Choice(["grpc", "http/protobuf"]),
    help="Instead of what the port suggests.",
)
@click.option(
    "--verify", metavar="URL", help="HTTP API of the same Echo: count there what was acknowledged."
)
@click.option("--insecure", is_flag=True, help="Plaintext to a bare HOST:PORT.")
@AS_JSON
def stress(as_json: bool, **options: Any) -> int:
    """Send events from many producers and account for every one of them."""
    summary = asyncio.run(_run(options, quiet=as_json))
    click.echo(json.dumps(summary, indent=2) if as_json else _text(summary))
    return 1 if summary["lost"] or summary["failures"] else 0


async def _run(options: dict[str, Any], quiet: bool) -> dict[str, Any]:
    from ingero.echo.stress import StressPlan, StressResult, run_stress

    count = options["producers"]
    nodes = (
        tuple(f"{options['node_id']}-{i}" for i in range(count))
        if count > 1
        else (options["node_id"],)
    )
    plan = StressPlan(
        node_ids=nodes,
        events=options["events"],
        chains=options["chains"],
        batch=options["batch"],
        rate=options["rate"],
        cluster=options["cluster"],
        planted=nodes[: options["planted"]],
        run=secrets.token_hex(4),
    )

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
    found = (
        await _count(options["verify"], plan.run, result.acknowledged)
        if options["verify"]
        else None
    )
    return {
        "run": plan.run,
        "nodes": len(nodes),
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


def _sender(options: dict[str, Any]) -> Any:
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
                f"{CA_VARIABLE} must name the certificate that signed Echo's; --insecure is plaintext"
            )
        return GrpcSender(endpoint.base, token, Path(authority).read_bytes())
    tls = (
        client_context(ClientTls(ca=Path(authority) if authority else None))
        if endpoint.is_secure
        else None
    )
    return HttpSender(endpoint.base, token, tls)


async def _count(url: str, run: str, acknowledged: int) -> int:
    """Ask Echo's API how many events of this run it has, once it has loaded them."""
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
    """Console script."""
    return run_click(stress, sys.argv[1:], "echo-stress")
