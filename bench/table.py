"""The output of every benchmark: one aligned table, then one line per requirement."""

import resource
import sys
from collections.abc import Sequence


def print_table(title: str, header: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print a table with the first column aligned left and the others right."""
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


def judge(requirements: Sequence[tuple[str, bool, str]]) -> int:
    """Print PASS or FAIL for each `(what, held, measured)` and return the exit status."""
    print()
    for what, held, measured in requirements:
        print(f"  {'PASS' if held else 'FAIL'}  {what}: {measured}")
    return 0 if all(held for _, held, _ in requirements) else 1


def peak_rss_mb() -> float:
    """Return the peak resident memory of this process."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def finish(status: int) -> None:
    """Exit with the status of `judge`."""
    sys.exit(status)


def _text(value: object) -> str:
    return (
        f"{value:,.3g}"
        if isinstance(value, float) and value < 1000
        else f"{value:,.0f}"
        if isinstance(value, int | float)
        else str(value)
    )
