"""`ingero import`: convert recorded collectives for a trace database, Fleet or Echo."""

import asyncio
import random
from dataclasses import replace
from pathlib import Path

import click

from ingero.cli.params import AS_JSON
from ingero.contract.collective import CollectiveRecord
from ingero.errors import MalformedInput, Unavailable

PUSH_TIMEOUT_S = 30.0
MAX_WAITS, MAX_WAIT_S = 10, 30.0


@click.command(
    "import",
    help="""Import recorded collectives into a trace database, Fleet or Echo.

    The records become rows of a trace database, or are sent as OTLP to Fleet or Echo, so that the
    same questions work there. The accepted files are those of `ingero blame`. Importing the same
    file twice into a database adds nothing.

    \b
    Examples:
      ingero import _dump_* --to job.db
      ingero import traces/ --to https://echo:14318 --cluster prod --token-file ~/.echo-token""",
)
@click.argument(
    "paths", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="PATH..."
)
@click.option(
    "--to",
    "target",
    required=True,
    metavar="FILE.db|ENDPOINT",
    help="Trace database to extend, or OTLP endpoint to send to.",
)
@click.option(
    "--cluster", default="default", show_default=True, help="Cluster the records belong to."
)
@click.option(
    "--node", default="imported", show_default=True, help="Node of records that do not name theirs."
)
@click.option("--job", default=None, help="Job of records that do not name theirs.")
@click.option(
    "--token-file",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File with the bearer token of the endpoint.",
)
@click.option(
    "--ca-cert",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Authority that signed the certificate of the endpoint.",
)
@click.option("--insecure", is_flag=True, help="Allow plaintext to another machine.")
@AS_JSON
def command(
    paths: tuple[Path, ...],
    target: str,
    cluster: str,
    node: str,
    job: str | None,
    token_file: Path | None,
    ca_cert: Path | None,
    insecure: bool,
    as_json: bool,
) -> None:
    from ingero.cli.recordings.ask import ask_records
    from ingero.cli.show.table import print_json, printable

    found, problems = ask_records(paths)
    records = _of_job(found, job)
    is_file = "://" not in target and (
        target.endswith((".db", ".sqlite")) or "/" in target or ":" not in target
    )
    if is_file:
        from ingero.storage.trace.collectives import add_collectives

        added = add_collectives(Path(target), node, records, flag="--to")
        line = f"{added} of {len(records)} records added to {target}; the rest were there"
        line = line if added < len(records) else f"{added} records added to {target}"
    else:
        added = asyncio.run(
            _push(records, target, cluster, node, token_file, ca_cert, insecure=insecure)
        )
        line = f"{added} records accepted by {target}"
    if as_json:
        print_json({"records": len(records), "added": added, "to": target, "problems": problems})
        return
    print(line)
    for problem in problems:
        print(f"note: {printable(problem)}")


def _of_job(records: list[CollectiveRecord], job: str | None) -> list[CollectiveRecord]:
    if not records:
        raise MalformedInput(
            "no timed collectives in these files; step traces and untimed dumps hold none"
        )
    return (
        records
        if job is None
        else [record if record.job else replace(record, job=job) for record in records]
    )


async def _push(
    records: list[CollectiveRecord],
    target: str,
    cluster: str,
    node: str,
    token_file: Path | None,
    ca_cert: Path | None,
    *,
    insecure: bool,
) -> int:
    from ingero.contract.measurements.collectives import encode_batches
    from ingero.core.health.modes import PushOutcome
    from ingero.transport.bearer import authorization, read_token_file
    from ingero.transport.endpoint import Protocol, parse_endpoint, refuse_plaintext
    from ingero.transport.otlp.client import ClientOptions, HttpPush
    from ingero.transport.tls import ClientTls, client_context

    endpoint = parse_endpoint(target, insecure=insecure, protocol=Protocol.HTTP_PROTOBUF)
    if not endpoint.is_secure and not insecure:
        refuse_plaintext(endpoint.base, "--insecure")
    headers = authorization(read_token_file(token_file)) if token_file else {}
    tls = client_context(ClientTls(ca=ca_cert)) if endpoint.is_secure else None
    options = ClientOptions(timeout_s=PUSH_TIMEOUT_S, tls=tls, headers=headers)
    client = HttpPush(endpoint, cluster, node, options, random.Random())  # noqa: S311  # jitter only
    sent = 0
    try:
        for request, points in encode_batches(records, cluster, node):
            reply = await client.push(request)
            for _ in range(MAX_WAITS):
                if reply.outcome is not PushOutcome.SHED:
                    break
                await asyncio.sleep(
                    min(reply.retry_after_s or 1.0, MAX_WAIT_S)
                )  # the reply asked to wait
                reply = await client.push(request)
            if reply.outcome is not PushOutcome.OK:
                raise Unavailable(
                    f"{target} accepted {sent} of {len(records)} records, then: "
                    f"{reply.detail or reply.outcome}"
                )
            sent += points - reply.rejected_points
    finally:
        await client.close()
    return sent
