"""`python -m bench.detection`: run the scoreboard, check the gates, write docs/scoreboard.md with pictures and JSON.

Results are kept per seed and size under .cache/scoreboard, so that an interrupted run goes on where it stopped.
"""

import json
import sys
import time
from pathlib import Path
from typing import Any

import click

from bench.detection.clocks import run_clocks
from bench.detection.detectors import NAMES, run_threshold, run_verdict
from bench.detection.healthy import run_healthy, run_healthy_threshold
from bench.detection.report import Row, check_gates, write_report
from bench.detection.scenarios import cases
from bench.detection.score import score

ROOT = Path(__file__).parents[2]
SIZES = (3, 8, 64, 512)


@click.command()
@click.option("--seed", type=int, default=7, show_default=True, help="Any number: the gates must hold on all of them.")
@click.option(
    "--size", "sizes", type=int, multiple=True, help="Fleet sizes; 3, 8, 64 and 512 unless you say otherwise."
)
@click.option("--node-hours", type=float, default=50_000.0, show_default=True, help="Of the healthy scenario.")
@click.option("--scenario", "only", type=int, multiple=True, help="Only these scenarios.")
@click.option("--fresh", is_flag=True, help="Forget kept results of this seed.")
@click.option("--write/--no-write", default=True, help="Rewrite docs/scoreboard.md.")
def main(seed: int, sizes: tuple[int, ...], node_hours: float, only: tuple[int, ...], fresh: bool, write: bool) -> None:
    """Fifteen scenarios, three detectors, one truth."""
    cache = ROOT / ".cache" / "scoreboard" / str(seed)
    rows: list[Row] = []
    for size in sizes or SIZES:
        for number, name, make in cases(size):
            if only and number not in only:
                continue
            rows += _kept(
                cache,
                f"{size}-{number}-{name}",
                fresh,
                lambda s=size, n=number, v=name, m=make: _case(s, n, v, m(seed), seed),
            )
    if not only or 1 in only:
        rows += _kept(cache, f"healthy-{node_hours:.0f}", fresh, lambda: _healthy(node_hours, seed))
    if not only or 10 in only:
        rows += _kept(cache, "clocks", fresh, lambda: _clocks(seed))
    gates = check_gates(rows)
    for what, held, measured in gates:
        print(f"{'PASS' if held else 'FAIL'}  {what}: {measured}")
    if write and not only:
        write_report(ROOT / "docs", rows, gates, seed)
    sys.exit(0 if all(held for _, held, _ in gates) else 1)


def _case(size: int, number: int, name: str, world: Any, seed: int) -> list[Row]:
    outcomes = (run_threshold(world, 2.0, 1), run_threshold(world, 3.5, 3), run_verdict(world, seed=seed))
    return [
        Row(number, name, size, detector, score(world, outcome, detector == "verdict").as_json())
        for detector, outcome in zip(NAMES, outcomes, strict=True)
    ]


def _healthy(node_hours: float, seed: int) -> list[Row]:
    scores = (
        run_healthy_threshold(2.0, 1, seed),
        run_healthy_threshold(3.5, 3, seed),
        run_healthy(node_hours, seed, _say),
    )
    return [Row(1, "a healthy day", 0, name, each.as_json()) for name, each in zip(NAMES, scores, strict=True)]


def _clocks(seed: int) -> list[Row]:
    return [Row(10, variant, 8, "verdict", {"unchanged": same}) for variant, same in run_clocks(seed)]


def _kept(cache: Path, key: str, fresh: bool, work: Any) -> list[Row]:
    path = cache / (key.replace("/", "_").replace(" ", "_") + ".json")
    if path.exists() and not fresh:
        return [Row(*entry) for entry in json.loads(path.read_text())]
    started = time.monotonic()
    rows = work()
    _say(f"{key}: {time.monotonic() - started:.1f} s")
    cache.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(rows))
    return list(rows)


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
