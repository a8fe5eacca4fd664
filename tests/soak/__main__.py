"""`make soak MINUTES=30`: all services under load, with a fault every minute.

It fails when memory or file handles of a service keep rising, when an acknowledged event is lost,
when a healthy node is named, or when the one slow node is not. docs/explain/soak.md explains the
verdict.
"""

import argparse
import asyncio
import csv
import dataclasses
import logging
import sys
import tempfile
import time
from pathlib import Path

from tests.soak.plan import make_plan
from tests.soak.report import problems, report
from tests.soak.run import Outcome, soak
from tests.soak.sampling import Sample

from ingero.transport.file_limit import raise_file_limit

RESULTS = Path(__file__).parents[2] / ".cache" / "soak"


def main() -> int:
    """Run one soak; return 1 if it failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument(
        "--leak", action="store_true", help="add a process that leaks: the run must fail"
    )
    given = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    raise_file_limit()
    plan = make_plan(given.minutes)
    leak = [sys.executable, "-m", "tests.soak.leak", "--every", "10"] if given.leak else None
    with tempfile.TemporaryDirectory(prefix="ingero-soak-") as folder:
        outcome = asyncio.run(soak(plan, Path(folder), tell, leak))
    text = report(outcome)
    print(text)
    keep(outcome, text)
    return 1 if problems(outcome) else 0


def tell(line: str) -> None:
    print(line, flush=True)


def keep(outcome: Outcome, text: str) -> None:
    """Write every sample, the report and the logs, for a closer look."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    name = time.strftime("%Y%m%dT%H%M%S", time.gmtime())
    (RESULTS / f"{name}.md").write_text("\n".join(outcome.notes) + "\n\n" + text + "\n")
    for log, tail in outcome.logs.items():
        (RESULTS / f"{name}-{log}").write_text(tail)
    with (RESULTS / f"{name}.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow([field.name for field in dataclasses.fields(Sample)])
        rows.writerows(dataclasses.astuple(each) for each in outcome.samples)


if __name__ == "__main__":
    sys.exit(main())
