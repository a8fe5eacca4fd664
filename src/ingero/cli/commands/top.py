"""`ingero top`: the slow and the worst of all clusters, in a terminal."""

import importlib.util
import sys
from pathlib import Path

import click

from ingero.cli.commands.status import command as status
from ingero.cli.exit_status import Question
from ingero.cli.fleet_options import CLUSTER, FLEET, chosen_cluster, fleet_client, same_fleet
from ingero.compiled import install_command


@click.command(cls=Question)
@CLUSTER
@FLEET
@click.pass_context
def command(
    ctx: click.Context,
    cluster: str | None,
    all_clusters: bool,
    fleet: str | None,
    context: str | None,
    ca_cert: Path | None,
) -> int:
    """Watch who is slow in a terminal, as Fleet's page shows it.

    Enter leads from clusters to jobs, ranks and the evidence about one of them, Esc back. `/`
    filters, `s` sorts, `y` copies the command of the next step, `m` silences a node, `l` shows what
    happened and `?` lists the keys. The slow and the worst 500 are listed.

    Without a terminal, or without the extra `tui`, the command prints what `ingero status` prints.
    `ingero` alone opens it on a terminal where ingero.yaml names a Fleet.

    \b
    Examples:
      ingero top
      ingero top --cluster train-a
      ingero top --context lab
    """
    is_terminal = sys.stdout.isatty() and sys.stdin.isatty()
    if not is_terminal or importlib.util.find_spec("textual") is None:
        if is_terminal:
            print(
                f"`ingero top` needs textual: `{install_command('tui')}`; until then, this is "
                "`ingero status`:\n",
                file=sys.stderr,
            )
        shown = ctx.invoke(
            status, cluster=cluster, all_clusters=all_clusters, fleet=fleet, context=context,
            ca_cert=ca_cert, show_all=False, watch=False, as_json=False,
        )  # fmt: skip
        return int(shown)
    from ingero.cli.top.app import TopApp
    from ingero.cli.top.reader import StreamReader

    client = fleet_client(fleet, ca_cert, context)
    only = chosen_cluster(cluster, all_clusters, context)
    given = same_fleet(fleet, ca_cert, context)
    problem = TopApp(StreamReader(client, only), client, only, given).run()
    if problem is not None:
        raise problem
    return 0
