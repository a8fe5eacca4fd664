"""Why a rank of a real job is slow: five host causes, one after the other; is each one named?

    make wheelhouse                                                        # once, where pip works
    SCRIPT=host_causes bash tests/hardware/real_jobs/run.sh --out $OUT     # GPU machine, as root
    SCRIPT=host_causes bash tests/hardware/real_jobs/run.sh --dry simulated    # anywhere

A job of eight ranks runs with Fleet and agent beside it. One rank at a time waits for a lock that
another thread holds, reads from the disk, collects garbage, shares its core with a busy program, or
has a CPU quota. Prints one table: what the job lost, when the rank was named, when its cause was,
and the cause. With simulated ranks, whose faults are all sleeps, it only shows that the chain of
verdict, ask, look and answer works.
"""

import argparse
import json
import os
import re
from pathlib import Path
from typing import Any

from tests.hardware.real_jobs.machine import WORLD, Machine
from tests.hardware.real_jobs.plan import CAUSES, Lengths, phases_of
from tests.hardware.real_jobs.rows import Heard, Passed
from tests.hardware.real_jobs.story import Story

ROOT = Path(__file__).parents[2]
EXPECTED = {
    "lock": r"waits for a lock .*wait_for_lock",
    "read": r"(reads|waits|runs) .*_read_samples",
    "collect": r"garbage collection, \d+ ms every \d+ steps",
    "hog": r"waits for a CPU \d.* behind `python",
    "quota": r"stopped \d.* by the CPU quota",
}
COLUMNS = ("fault", "rank", "job lost", "named", "cause after", "right", "cause")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--job", default="ddp")
    parser.add_argument("--kinds", default=",".join(CAUSES), help="faults, in this order")
    parser.add_argument("--healthy", type=float, default=75.0, help="seconds before the first")
    parser.add_argument("--fault", type=float, default=40.0, help="seconds of each fault")
    parser.add_argument("--calm", type=float, default=25.0, help="seconds after each fault")
    parser.add_argument("--dry", choices=("simulated",), default="gpu", help="without a GPU")
    parser.add_argument("--wheelhouse", type=Path, default=ROOT / "wheelhouse")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "host-causes-out")))
    return parser.parse_args()


def main() -> None:
    args = parse()
    args.out.mkdir(parents=True, exist_ok=True)
    machine = Machine(args.wheelhouse, args.dry)
    lengths = Lengths(args.healthy, args.fault, args.calm)
    phases = phases_of(args.job, lengths, tuple(args.kinds.split(",")))
    story = Story(machine, args.job, phases, 100 // WORLD)
    try:
        story.tell()
        losses = {row["phase"]: lost(row) for row in story.rows()}
        found = [told(each, story.heard, args.dry != "gpu") for each in story.passed]
        for row in found:
            row["job lost"] = losses.get(row["phase"], "")
        keep(story, found, args.out)
    finally:
        machine.close()
    print(table([row for row in found if row["fault"] != "calm"]))
    blamed = [row for row in found if row["fault"] == "calm" and row["cause"]]
    print(f"causes named while nothing was slowed: {len(blamed)}")
    for row in blamed:
        print(f"  {row['phase']}: {row['cause']}")


def lost(row: dict[str, Any]) -> str:
    truth = row.get("truth")
    return "" if not isinstance(truth, int | float) else f"{100 * truth:.1f} %"


def told(passed: Passed, heard: list[Heard], is_simulated: bool) -> dict[str, Any]:
    """Return what Fleet said in a phase about the rank that was slowed, or about anybody."""
    kind, rank = passed.phase.kind, passed.phase.fault.get("rank")
    named_s = cause_s = None
    cause = ""
    for each in heard:
        if not passed.began_s <= each.at_s <= passed.ended_s:
            continue
        for verdict in each.verdicts:
            is_open = verdict["state"] not in ("resolved", "recovering")
            is_new = verdict["since"] >= passed.began_s - 5.0
            if rank not in (None, verdict.get("rank")) or not (is_open and is_new):
                continue
            if verdict["state"] == "straggler" and named_s is None:
                named_s = each.at_s - passed.began_s
            cause = verdict.get("cause") or cause
            if cause and not cause.startswith("unknown") and cause_s is None:
                cause_s = each.at_s - passed.began_s
    is_right = bool(cause) and bool(re.match(EXPECTED.get(kind, "$"), cause))
    return {
        "phase": passed.phase.name,
        "fault": kind,
        "rank": "" if rank is None else rank,
        "named": "" if named_s is None else f"{named_s:.0f} s",
        "cause after": "" if cause_s is None else f"{cause_s:.0f} s",
        "right": "simulated" if is_simulated else "yes" if is_right else "NO",
        "cause": cause,
    }


def table(rows: list[dict[str, Any]]) -> str:
    lines = [COLUMNS, *(tuple(str(row.get(name, "")) for name in COLUMNS) for row in rows)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(COLUMNS))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def keep(story: Story, rows: list[dict[str, Any]], out: Path) -> None:
    """Write the table and everything that Fleet and agent said."""
    (out / "host-causes.json").write_text(json.dumps(rows, indent=1, ensure_ascii=False))
    for name in ("agent.log", "fleet.log", "job.log"):
        (out / name).write_bytes((story.folder / name).read_bytes()[-1_000_000:])
    (out / "screens.txt").write_text("\n".join(story.screens))


if __name__ == "__main__":
    main()
