"""`ingero check`: is this node ready, and what does each missing piece cost."""

from pathlib import Path

import click

from ingero.cli.params import AS_JSON
from ingero.cli.table import coloured, print_json, printable
from ingero.contract.names import DEFAULT_CLUSTER


@click.command()
@click.option("--fleet", metavar="URL", help="Instead: does a push from here reach this Fleet (http[s]://host:4318)?")
@click.option("--cluster", default=DEFAULT_CLUSTER, show_default=True, help="With --fleet: whose quorum.")
@click.option("--ca-cert", type=click.Path(path_type=Path), help="With --fleet: authority of its certificate.")
@AS_JSON
def command(as_json: bool, fleet: str | None, cluster: str, ca_cert: Path | None) -> int:
    """Say whether this node can be traced, piece by piece: what is there, what is missing, what that costs, what to do.

    \b
    Examples:
      ingero check
      sudo ingero check          also tries to load every probe
      ingero check --json
      ingero check --fleet https://fleet:4318 --cluster train-a
    """
    if fleet is not None:
        return _check_fleet(fleet, cluster, ca_cert, as_json)
    from ingero.agent.checks import run_checks

    checks = run_checks()
    all_passed = all(check.passed or check.optional for check in checks)
    if as_json:
        keys = ("name", "pass", "optional", "value", "detail", "recommendation")
        rows = [(c.name, c.passed, c.optional, c.value, c.detail, c.recommendation) for c in checks]
        print_json({"all_passed": all_passed, "checks": [dict(zip(keys, row, strict=True)) for row in rows]})
        return 0 if all_passed else 1
    width = max(len(check.name) for check in checks)
    for check in checks:
        mark = coloured("ok  ", "32") if check.passed else coloured("note" if check.optional else "FAIL", "33;1")
        print(f"{mark}  {check.name.ljust(width)}  {printable(check.value)}")
        for line in (check.detail, f"do: {check.recommendation}" if check.recommendation and not check.passed else ""):
            if line:
                print(f"      {' ' * width}  {printable(line)}")
    print("\nready to trace" if all_passed else "\nnot ready: see FAIL above")
    return 0 if all_passed else 1


def _check_fleet(url: str, cluster: str, ca_cert: Path | None, as_json: bool) -> int:
    from ingero.cli.check_fleet import check_fleet

    checks = check_fleet(url, cluster, ca_cert)
    all_passed = all(check.passed for check in checks)
    if as_json:
        rows = [{"name": c.name, "pass": c.passed, "value": c.value, "recommendation": c.advice} for c in checks]
        print_json({"all_passed": all_passed, "checks": rows})
        return 0 if all_passed else 1
    width = max(len(check.name) for check in checks)
    for check in checks:
        mark = coloured("ok  ", "32") if check.passed else coloured("FAIL", "31;1")
        print(f"{mark}  {check.name.ljust(width)}  {printable(check.value)}")
        if check.advice and not check.passed:
            print(f"      {' ' * width}  do: {printable(check.advice)}")
    return 0 if all_passed else 1
