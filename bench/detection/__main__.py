"""`python -m bench.detection`: run the scoreboard, check its gates and write docs/scoreboard.md.

Pictures and JSON are written, too. Results are kept under .cache/scoreboard, so that an interrupted
run continues where it stopped. With `--seeds`, many seeds run on fewer worlds, and one table shows
how often each gate held.
"""

import sys

import click

from bench.detection.report import check_gates, write_report
from bench.detection.runs import ROOT, Runner, real_rows
from bench.detection.seeds import parse_seeds, run_seeds

SIZES = (3, 8, 64, 512)


@click.command()
@click.option(
    "--seed",
    type=int,
    default=7,
    show_default=True,
    help="Any number: the gates must hold on all of them.",
)
@click.option(
    "--seeds", "many", help="Many seeds, for example 2000-2023: verdict engine, gated scenarios."
)
@click.option(
    "--size",
    "sizes",
    type=int,
    multiple=True,
    help="Fleet sizes; 3, 8, 64 and 512 unless you say otherwise.",
)
@click.option(
    "--node-hours",
    type=float,
    default=50_000.0,
    show_default=True,
    help="Healthy ones, over all seeds.",
)
@click.option("--scenario", "only", type=int, multiple=True, help="Only these scenarios.")
@click.option("--fresh", is_flag=True, help="Forget kept results.")
@click.option(
    "--write/--no-write",
    default=True,
    help="Rewrite docs/scoreboard.md, or docs/scoreboard-seeds.md.",
)
def main(
    seed: int,
    many: str | None,
    sizes: tuple[int, ...],
    node_hours: float,
    only: tuple[int, ...],
    fresh: bool,
    write: bool,
) -> None:
    """Run fifteen scenarios with three detectors against a known truth."""
    chosen = sizes or SIZES
    if many is not None:
        sys.exit(
            run_seeds(
                parse_seeds(many), chosen, node_hours, only, fresh=fresh, write=write and not only
            )
        )
    rows = Runner(seed, only, short=False, fresh=fresh).rows(chosen, node_hours)
    rows += real_rows() if not only else []
    gates = check_gates(rows)
    for what, held, measured in gates:
        print(f"{'PASS' if held else 'FAIL'}  {what}: {measured}")
    if write and not only:
        write_report(ROOT / "docs", rows, gates, seed)
    sys.exit(0 if all(held for _, held, _ in gates) else 1)


if __name__ == "__main__":
    main()
