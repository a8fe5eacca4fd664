"""Real PyTorch jobs with Fleet and agent beside them, slowed phase by phase; who was named when?

    make wheelhouse                                                    # once, where pip works
    bash tests/hardware/real_jobs/run.sh --seconds-budget 540          # GPU machine
    bash tests/hardware/real_jobs/run.sh --dry simulated --only ddp    # anywhere

Jobs run one after the other, as long as the time allows: each with the faults that have no row of
this commit yet (without --again), and with as much calm time as it lacks of five minutes over all
runs. `ddp:lock/read` chooses the faults of one job. Rows of earlier runs are read from --rows and
kept. Leaves rows.json, written as the run goes on, and archives of every job in --out, and prints
one table. What time is left shows what plugin and agent cost: the jobs of --bare run without them.
"""

import argparse
import json
import os
import threading
from pathlib import Path
from typing import Any

from tests.hardware.real_jobs.bare import overhead_row, run_bare
from tests.hardware.real_jobs.machine import Machine, commit
from tests.hardware.real_jobs.plan import CAUSES, FAULTS, Lengths, phases_of
from tests.hardware.real_jobs.report import table
from tests.hardware.real_jobs.rows import Row, is_settled, write
from tests.hardware.real_jobs.story import Story
from tests.hardware.real_jobs.timetable import BARE_S, Deadline, lengths_that_fit

ROOT = Path(__file__).parents[3]
KINDS = ("gpu", "host", "stall")
KEEP_S = 5.0


def main() -> None:
    args = parse()
    args.out.mkdir(parents=True, exist_ok=True)
    rows = json.loads(args.rows.read_text()) if args.rows.exists() else []
    deadline = Deadline(args.seconds_budget, args.deadline)
    machine = Machine(args.wheelhouse, args.dry)
    runs = Runs(machine, args, rows)
    modes = args.only.split(",")
    try:
        for number, job in enumerate(modes):
            mode, kinds = kinds_of(job, args, rows)
            later = [kinds_of(each, args, rows) for each in modes[number + 1 :]]
            lengths = lengths_of(args) or lengths_that_fit(
                mode, kinds, later, runs.rows, deadline.left_s()
            )
            if lengths is None:
                runs.left_out.append(mode)
                continue
            runs.run(mode, lengths, kinds)
        for mode in filter(None, args.bare.split(",")):
            if deadline.left_s() > BARE_S:
                runs.run_bare(mode)
    finally:
        runs.close()
        machine.close()
    print(table(runs.fresh))
    print(f"left out: {', '.join(runs.left_out) or 'nothing'}; {deadline.left_s():.0f} s are left")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(FAULTS), help="jobs, in this order")
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"of {[*KINDS, *CAUSES]}")
    for name in ("healthy", "fault", "calm"):
        parser.add_argument(f"--{name}", type=float, help="seconds of such a phase (all or none)")
    parser.add_argument("--seconds-budget", type=float, default=540.0)
    parser.add_argument("--deadline", type=Path, help="a file with the Unix time of the end")
    parser.add_argument("--bare", default="", help="jobs run without plugin and agent at the end")
    parser.add_argument("--again", action="store_true", help="also what has rows of this commit")
    parser.add_argument(
        "--dry",
        choices=("simulated", "tiny"),
        default="gpu",
        help="ranks without a GPU: simulated, or tiny PyTorch ones without verdicts",
    )
    parser.add_argument("--commit", default=commit(), help="written into each row")
    parser.add_argument("--rows", type=Path, default=ROOT / "docs" / "real-jobs.json")
    parser.add_argument("--wheelhouse", type=Path, default=ROOT / "wheelhouse")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "real-jobs-out")))
    return parser.parse_args()


def lengths_of(args: argparse.Namespace) -> Lengths | None:
    """Return the lengths that were asked for."""
    if None in (args.healthy, args.fault, args.calm):
        return None
    return Lengths(args.healthy, args.fault, args.calm)


def kinds_of(job: str, args: argparse.Namespace, rows: list[Row]) -> tuple[str, tuple[str, ...]]:
    """Return a job and its faults: one that has a row of this commit is not run again."""
    mode, _, own = job.partition(":")
    known = {row["kind"] for row in rows if row["job"] == mode and row["commit"] == args.commit}
    kinds = own.split("/") if own else [kind for kind in args.kinds.split(",") if kind]
    return mode, tuple(kind for kind in kinds if args.again or kind not in known)


class Runs:
    """Runs jobs and keeps their rows; a job ends and is packed while the next one starts."""

    def __init__(self, machine: Machine, args: argparse.Namespace, before: list[Row]) -> None:
        self.machine, self.args, self.before = machine, args, before
        self.shared = {"commit": args.commit, "together": 1, "machine": machine.name}
        self.fresh: list[Row] = []
        self.left_out: list[str] = []
        self.endings: list[threading.Thread] = []

    @property
    def rows(self) -> list[Row]:
        return self.before + self.fresh

    def run(self, mode: str, lengths: Lengths, kinds: tuple[str, ...]) -> None:
        story = Story(self.machine, mode, phases_of(mode, lengths, kinds), is_settled)
        story.say(f"phases: {lengths.healthy:.0f}, {lengths.fault:.0f}, {lengths.calm:.0f} s")
        thread = threading.Thread(target=story.tell)
        thread.start()
        while thread.is_alive():
            thread.join(KEEP_S)  # what is known so far survives if this machine is taken away
            self._write(self.rows + self._told(story))
        self.fresh += self._told(story)
        self._write(self.rows)
        ending = threading.Thread(target=self._end, args=(story, self._told(story)))
        ending.start()
        self.endings.append(ending)

    def run_bare(self, mode: str) -> None:
        self.close()  # nothing else runs beside it
        mine = [row for row in self.fresh if row["job"] == mode]
        row = overhead_row(mode, run_bare(self.machine, mode), mine)
        if row is not None:
            self.fresh.append(self.shared | row)
            self._write(self.rows)

    def close(self) -> None:
        for ending in self.endings:
            ending.join()

    def _told(self, story: Story) -> list[Row]:
        """Return the rows of a job so far."""
        return [self.shared | row | run_facts(story, row) for row in story.rows()]

    def _end(self, story: Story, rows: list[Row]) -> None:
        story.close()
        for path in story.keep(self.args.out, rows):
            story.say(f"{path.name}: {path.stat().st_size:,} bytes")

    def _write(self, rows: list[Row]) -> None:
        write(rows, self.args.out / "rows.json")


def run_facts(story: Story, row: Row) -> dict[str, Any]:
    facts = {"agent_cpu": story.facts.get("agent_cpu", {}).get(row["phase"])}
    if row["phase"] == "healthy":
        facts |= {name: story.facts.get(name) for name in ("start_s", "judged_s")}
    return facts | ({"problem": story.problem[:300]} if story.problem else {})


if __name__ == "__main__":
    main()
