"""Puts the rows of `host_causes` into docs/host-causes.json, and their table onto its page.

python -m tests.hardware.causes_report [host-causes-out/host-causes.json]
"""

import json
import re
import sys
from pathlib import Path
from typing import Any

from tests.hardware.real_jobs.plan import CALM

ROOT = Path(__file__).parents[2]
ROWS = ROOT / "docs" / "host-causes.json"
PAGE = ROOT / "docs" / "explain" / "causes.md"
MADE = {
    "lock": "a lock that another thread holds",
    "read": "reads from the disk",
    "collect": "garbage collection, every 10 steps",
    "hog": "a busy program on its core",
    "quota": "a CPU quota",
}
COLUMNS = (
    "what slowed the rank", "the job lost", "named after", "class, said loss", "cause after",
    "right", "cause as said", "commit",
)  # fmt: skip
PART = re.compile(r"(<!-- causes: generated -->\n).*?(<!-- causes: end -->)", re.DOTALL)


def table(rows: list[dict[str, Any]]) -> str:
    """Return the last row of each kind of fault on a GPU."""
    last = {row["fault"]: row for row in rows if row["machine"] != "simulated"}
    lines = [f"| {' | '.join(COLUMNS)} |", "|---" * len(COLUMNS) + "|"]
    lines += [_line(last[kind]) for kind in MADE if kind in last]
    calm = [row for row in rows if row["fault"] == CALM and row["machine"] != "simulated"]
    named = sum(bool(row["cause"]) for row in calm)
    return "\n".join(lines) + f"\n\nCauses named while nothing was slowed: {named}.\n"


def _line(row: dict[str, Any]) -> str:
    said = f"{row['class']}, {_percent(row['loss'])}" if row["loss"] is not None else "–"
    if row["loss_error"]:
        said += f" ± {_percent(row['loss_error'])}"
    cells = [
        MADE[row["fault"]],
        _percent(row["lost"]),
        _seconds(row["named_s"]),
        said,
        _seconds(row["cause_s"]),
        "yes" if row["right"] else "**no**",
        row["cause"].replace("|", "/") or "–",
        row["commit"],
    ]
    return f"| {' | '.join(cells)} |"


def _percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.1f} %"


def _seconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.0f} s"


def main() -> None:
    rows = json.loads(ROWS.read_text())
    for path in sys.argv[1:]:
        rows += [row for row in json.loads(Path(path).read_text()) if row not in rows]
    ROWS.write_text(json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    text = PAGE.read_text()
    PAGE.write_text(PART.sub(lambda found: found[1] + table(rows) + found[2], text))
    print(table(rows))


if __name__ == "__main__":
    main()
