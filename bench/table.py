"""What every bench prints: one aligned table, then one line per bar that must hold."""

import resource
import sys
from collections.abc import Sequence


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """First column left, the rest right."""
    cells = [list(header), *[[_text(value) for value in row] for row in rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    print(f"\n{title}")
    for number, row in enumerate(cells):
        print(
            "  "
            + "  ".join(
                c.ljust(w) if i == 0 else c.rjust(w)
                for i, (c, w) in enumerate(zip(row, widths, strict=True))
            )
        )
        if number == 0:
            print("  " + "  ".join("-" * width for width in widths))


def judge(bars: Sequence[tuple[str, bool, str]]) -> int:
    """Print PASS or FAIL per bar `(what, held, measured)`; returns the exit status."""
    print()
    for what, held, measured in bars:
        print(f"  {'PASS' if held else 'FAIL'}  {what}: {measured}")
    return 0 if all(held for _, held, _ in bars) else 1


def peak_rss_mb() -> float:
    """Largest resident size of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def finish(status: int) -> None:
    """Leave with the bars' status."""
    sys.exit(status)


def _text(value: object) -> str:
    return (
        f"{value:,.3g}"
        if isinstance(value, float) and value < 1000
        else f"{value:,.0f}"
        if isinstance(value, int | float)
        else str(value)
    )
