"""`ingero check`: whether this node can be traced, and what each missing piece costs."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ingero.cli.params import AS_JSON
from ingero.cli.show.table import coloured, print_json, printable
from ingero.cli.show.wrap import on_screen
from ingero.contract.names import DEFAULT_CLUSTER

if TYPE_CHECKING:
    from ingero.agent.checks import Check

CONFIGURED = "configured"  # --fleet without an address


@click.command()
@click.option(
    "--fleet",
    is_flag=False,
    flag_value=CONFIGURED,
    metavar="[URL]",
    help="Check instead whether a push from here reaches a Fleet: that of ingero.yaml, or this one "
    "(http[s]://host:4318).",
)
@click.option(
    "--context",
    metavar="NAME",
    show_default="the one in use",
    help="Context of ingero.yaml to take address, token and cluster from, with --fleet.",
)
@click.option(
    "--cluster",
    metavar="NAME",
    show_default="that of ingero.yaml",
    help="Cluster whose quorum is checked, with --fleet.",
)
@click.option(
    "--ca-cert",
    type=click.Path(path_type=Path),
    help="Authority that signed Fleet's certificate, with --fleet.",
)
@AS_JSON
def command(
    as_json: bool,
    fleet: str | None,
    context: str | None,
    cluster: str | None,
    ca_cert: Path | None,
) -> int:
    """Check whether this node can be traced.

    The command checks kernel, type information, capabilities, probes (under sudo each is loaded
    once), driver, GPU, libraries, processes and the place of the database. For each missing piece
    it shows what that costs and what to do. The exit status is 1 where `ingero trace`, run the same
    way, would refuse or find nothing; notes do not count.

    With --fleet, the command checks instead whether Fleet can be reached, accepts a push of this
    node and shares its clock. Too few nodes for a quorum is only a note. Address, certificates,
    token and cluster are those of `fleet` in ingero.yaml, or of the context in use; options and the
    token in $INGERO_FLEET_TOKEN take precedence.

    \b
    Examples:
      ingero check
      sudo ingero check          also tries to load every probe
      ingero check --json
      ingero check --fleet
      ingero check --fleet https://fleet:4318 --cluster train-a
    """
    if fleet is not None:
        from ingero.cli.commands.node.check_fleet import check_fleet
        from ingero.cli.fleet_options import fleet_client
        from ingero.config.contexts import find_context

        chosen = find_context(context)
        url = chosen.push_url if fleet == CONFIGURED else fleet
        cluster = cluster or chosen.settings.cluster_id or DEFAULT_CLUSTER
        found = check_fleet(fleet_client(url, ca_cert, chosen), cluster)
        return _report(found, as_json, ready="agents here can push")
    from ingero.agent.checks import run_checks

    return _report(run_checks(), as_json, ready="ready to trace")


def _report(checks: Sequence["Check"], as_json: bool, ready: str) -> int:
    all_passed = all(check.passed or check.optional for check in checks)
    if as_json:
        keys = ("name", "pass", "optional", "value", "detail", "recommendation")
        rows = [(c.name, c.passed, c.optional, c.value, c.detail, c.recommendation) for c in checks]
        print_json(
            {
                "all_passed": all_passed,
                "checks": [dict(zip(keys, row, strict=True)) for row in rows],
            }
        )
        return 0 if all_passed else 1
    width = max(len(check.name) for check in checks)
    for check in checks:
        _print_check(check, width)
    print(f"\n{ready}" if all_passed else "\nnot ready: see FAIL above")
    return 0 if all_passed else 1


def _print_check(check: "Check", width: int) -> None:
    """Print what was checked, then what a missing piece costs and what to do."""
    failed, colour = ("note", "33;1") if check.optional else ("FAIL", "31;1")
    state, colour = ("ok  ", "32") if check.passed else (failed, colour)
    indent = " " * (len(state) + width + 4)
    first = on_screen(f"{state}  {check.name:<{width}}  {printable(check.value)}", indent)
    print(coloured(state, colour) + first.removeprefix(state))
    if check.detail:
        print(on_screen(indent + printable(check.detail), indent))
    if check.recommendation and not check.passed:
        print(on_screen(f"{indent}do: {printable(check.recommendation)}", indent))
