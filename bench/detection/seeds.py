"""Many seeds in one run: how often each gate holds, and in which worlds it does not."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import click

from bench.detection.report import Gate, Row, check_gates
from bench.detection.runs import ROOT, Runner, say

MAX_SEEDS = 200


@dataclass
class Tally:
    """One gate over all seeds."""

    held: int = 0
    seeds: int = 0
    failures: list[str] = field(default_factory=list)  # "seed: measured"


def parse_seeds(text: str) -> range:
    """Parse `2000-2023`, or one number."""
    first, _, last = text.partition("-")
    try:
        seeds = range(int(first), int(last or first) + 1)
    except ValueError:
        raise click.BadParameter(
            f"{text!r} is no range of seeds such as 2000-2023", param_hint="--seeds"
        ) from None
    if not 0 < len(seeds) <= MAX_SEEDS:
        raise click.BadParameter(
            f"{text!r} names {len(seeds)} seeds; 1 to {MAX_SEEDS} are run", param_hint="--seeds"
        )
    return seeds


def run_seeds(
    seeds: range,
    sizes: Sequence[int],
    node_hours: float,
    only: Sequence[int],
    *,
    fresh: bool,
    write: bool,
) -> int:
    """Print and write the table; return 1 when a gate over all seeds does not hold."""
    tallies: dict[str, Tally] = {}
    everything: list[Row] = []
    for done, seed in enumerate(seeds):
        started = time.monotonic()
        rows = Runner(seed, only, short=True, fresh=fresh).rows(sizes, node_hours / len(seeds))
        everything += rows
        _count(tallies, check_gates(rows), seed)
        say(f"{done + 1} of {len(seeds)} seeds ({time.monotonic() - started:.0f} s)")
    pooled = check_gates(everything)
    text = _table(tallies, pooled, everything, seeds, sizes)
    print(text)
    if write:
        (ROOT / "docs" / "scoreboard-seeds.md").write_text(text + "\n")
    return 0 if all(held for _, held, _ in pooled) else 1


def _count(tallies: dict[str, Tally], gates: Sequence[Gate], seed: int) -> None:
    for what, held, measured in gates:
        tally = tallies.setdefault(what, Tally())
        tally.seeds += 1
        tally.held += held
        if not held:
            tally.failures.append(f"{seed}: {measured}")


def _table(
    tallies: dict[str, Tally],
    pooled: Sequence[Gate],
    rows: Sequence[Row],
    seeds: range,
    sizes: Sequence[int],
) -> str:
    named = f"{seeds.start}-{seeds.stop - 1}"
    lines = [_HEAD.format(count=len(seeds), named=named, sizes=", ".join(map(str, sizes)))]
    for what, held, measured in pooled:
        tally = tallies[what]
        mark = "" if held else " **no**"
        lines.append(
            f"| {what} | {tally.held} of {tally.seeds} | {measured}{mark} "
            f"| {'; '.join(tally.failures[:6])} |"
        )
    lines += ["", *_alarms(rows)]
    return "\n".join(lines)


_HEAD = """# Scoreboard of many seeds

The gates of the [scoreboard](scoreboard.md) on {count} seeds ({named}) that nothing was tuned on.
Fleets have {sizes} ranks; only the verdict engine runs, on the scenarios that have a gate.
`make scoreboard-seeds SEEDS={named}` writes this page.

| gate | seeds on which it held | all seeds pooled | where it did not |
|---|---|---|---|"""


def _alarms(rows: Sequence[Row]) -> list[str]:
    """Return the false alarms of the verdict engine by scenario, and the hours it ran."""
    lines = ["| # | false alarms | node-hours | per 1000 |", "|---|---|---|---|"]
    for number in sorted({row.scenario for row in rows}):
        figures = [
            r.figures
            for r in rows
            if r.scenario == number and r.detector == "verdict" and "node_hours" in r.figures
        ]
        hours = sum(f["node_hours"] for f in figures)
        if hours:
            alarms = sum(f["false_alarms"] for f in figures)
            lines.append(f"| {number} | {alarms} | {hours:,.0f} | {1000 * alarms / hours:.2f} |")
    return lines
