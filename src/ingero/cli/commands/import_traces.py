"""`ingero import`: recorded collectives and causal chains for a trace database, Fleet or Echo."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ingero.cli.params import AS_JSON
from ingero.contract.collective import CollectiveRecord
from ingero.core.counted import counted
from ingero.errors import MalformedInput

if TYPE_CHECKING:
    from ingero.contract.chain_otlp import ReportedChain


@click.command(
    "import",
    help="""Import recorded collectives and causal chains into a trace database, Fleet or Echo.

    The records become rows of a trace database, or are sent as OTLP to Fleet or Echo, so that the
    same questions work there. The accepted files are those of `ingero blame`. Trace databases of
    nodes can be sent, too: their collectives, and their causal chains with the stacks of the slow
    calls. Importing the same file twice adds nothing.

    \b
    Examples:
      ingero import _dump_* --to job.db
      ingero import node.db --to https://echo:14318 --cluster prod
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

    is_file = "://" not in target and (
        target.endswith((".db", ".sqlite")) or "/" in target or ":" not in target
    )
    chains, with_records = ([], list(paths)) if is_file else _read_databases(paths)
    found, problems = ask_records(with_records) if with_records else ([], [])
    records = _of_job(found, job, is_empty=not chains)
    sent_chains = 0
    if is_file:
        from ingero.storage.trace.collectives import add_collectives

        added = add_collectives(Path(target), node, records, flag="--to")
        line = f"{added} of {len(records)} records added to {target}; the rest were there"
        line = line if added < len(records) else f"{counted(added, 'record')} added to {target}"
    else:
        from ingero.cli.recordings.send import Target, send

        where = Target(
            address=target,
            cluster=cluster,
            node=node,
            token_file=token_file,
            ca_cert=ca_cert,
            insecure=insecure,
        )
        added, sent_chains = asyncio.run(send(where, records, chains))
        also = f" and {counted(sent_chains, 'causal chain')}" if chains else ""
        line = f"{counted(added, 'record')}{also} accepted by {target}"
    if as_json:
        counts = {"records": len(records), "added": added}
        if chains:
            counts |= {"chains": len(chains), "chains_added": sent_chains}
        print_json({**counts, "to": target, "problems": problems})
        return
    print(line)
    for problem in problems:
        print(f"note: {printable(problem)}")


def _is_database(path: Path) -> bool:
    from ingero.cli.recordings.load import is_sqlite

    return path.is_file() and is_sqlite(path)


def _read_databases(paths: tuple[Path, ...]) -> "tuple[list[ReportedChain], list[Path]]":
    """Return the chains of all trace databases, and the files that hold collectives."""
    chains: list[ReportedChain] = []
    with_records = list(paths)
    for path in filter(_is_database, paths):
        reported, has_records = _read_chains(path)
        chains += reported
        if reported and not has_records:
            with_records.remove(path)
    return chains, with_records


def _read_chains(path: Path) -> "tuple[list[ReportedChain], bool]":
    """Return the chains of a trace database, and whether it holds collectives, too."""
    from ingero.storage.trace.chains import read_chains
    from ingero.storage.trace.reading import reading
    from ingero.storage.trace.schema import table_columns
    from ingero.storage.trace.stacks import report_chain

    with reading(path) as connection:
        chains = [report_chain(connection, chain) for chain in read_chains(connection)]
        has_records = bool(table_columns(connection, "collectives")) and bool(
            connection.execute("SELECT EXISTS (SELECT 1 FROM collectives)").fetchone()[0]
        )
    return chains, has_records


def _of_job(
    records: list[CollectiveRecord], job: str | None, *, is_empty: bool
) -> list[CollectiveRecord]:
    if not records and is_empty:
        raise MalformedInput(
            "no timed collectives in these files; step traces and untimed dumps hold none"
        )
    return (
        records
        if job is None
        else [record if record.job else replace(record, job=job) for record in records]
    )
