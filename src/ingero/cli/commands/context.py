"""`ingero context`: which Fleet commands ask, chosen by name from ingero.yaml."""

import click

from ingero.cli.params import AS_JSON
from ingero.cli.show.table import print_json, printable, render_table
from ingero.config.contexts import all_contexts, find_context, use_context
from ingero.config.ingero import load_ingero


@click.group()
def command() -> None:
    """List the Fleets of ingero.yaml and choose the one that commands ask.

    The `fleet` block is the context `default`; others are listed under `contexts`. The choice is
    kept for you alone, in ~/.config/ingero/context.

    \b
    Examples:
      ingero context list
      ingero context use lab
      ingero status --context lab
    """


@command.command("list")
@AS_JSON
def list_contexts(as_json: bool) -> None:
    """List every context, and mark the one in use.

    \b
    Examples:
      ingero context list
      ingero context list --json
    """
    used, found = find_context().name, all_contexts(load_ingero())
    rows = [(each.name, each.url, each.settings.cluster_id or "all") for each in found]
    if as_json:
        keys = ("context", "fleet", "cluster", "in_use")
        print_json([dict(zip(keys, (*row, row[0] == used), strict=True)) for row in rows])
        return
    marked = [("*" if row[0] == used else "", *row) for row in rows]
    print(render_table(("", "context", "Fleet", "cluster"), marked))


@command.command()
@click.argument("name")
def use(name: str) -> None:
    """Ask the Fleet of this context from now on.

    \b
    Examples:
      ingero context use lab
      ingero context use default       the `fleet` block of ingero.yaml
    """
    use_context(name)
    print(f"commands ask {printable(find_context(name).url)} now")
