"""Why a rank of a real job is slow: five host causes, one after the other; is each one named?

    make wheelhouse                                                         # where pip works
    SCRIPT=host_causes bash tests/hardware/real_jobs/run.sh --out $OUT      # GPU machine, as root
    SCRIPT=host_causes bash tests/hardware/real_jobs/run.sh --dry simulated # anywhere, as root
    python -m tests.hardware.causes_report $OUT/host-causes.json            # into docs/

A job of eight ranks runs with Fleet and agent beside it, calm at first. Then one rank at a time
waits for a lock that another thread holds, reads from the disk, collects garbage, shares its core
with a busy program, or has a CPU quota, until its cause is named or 24 s are over. It takes about
two and a half minutes. Simulated ranks have no GPU; what slows them is real.
"""

import argparse
import json
import os
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.hardware.real_jobs.machine import Machine, commit
from tests.hardware.real_jobs.plan import CALM, CAUSES, PERIODIC, Lengths, Phase, phases_of
from tests.hardware.real_jobs.rows import Heard
from tests.hardware.real_jobs.story import Story

ROOT = Path(__file__).parents[2]
EXPECTED = {
    "lock": r"waits for a lock .*wait_for_lock",
    "read": r"(reads|waits for a disk|waits|runs) .*_read_samples",
    "collect": r"garbage collection, [\d.]+ ms every \d+ steps",
    "hog": r"waits for a CPU \d.* behind `python",
    "quota": r"stopped \d.* by the CPU quota",
}
COLUMNS = ("fault", "rank", "lost", "named_s", "class", "loss", "cause_s", "right", "cause")
# simulated ranks use little CPU, so that outside pressure must be stronger to be felt
SIMULATED = {"hog": {"rank": 6, "hog": 3}, "quota": {"rank": 3, "quota": 0.03}}
CAUSE_KNOWN_S = 2.0  # then a phase ends, so that the cause stands in the row with its loss


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--job", default="ddp")
    parser.add_argument("--kinds", default=",".join(CAUSES), help="faults, in this order")
    parser.add_argument("--healthy", type=float, default=34.0, help="seconds before the first")
    parser.add_argument("--fault", type=float, default=24.0, help="seconds of a fault, at most")
    parser.add_argument("--calm", type=float, default=0.0, help="seconds after each fault")
    parser.add_argument("--dry", choices=("simulated",), default="gpu", help="without a GPU")
    parser.add_argument("--commit", default=commit(), help="written into each row")
    parser.add_argument("--wheelhouse", type=Path, default=ROOT / "wheelhouse")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "host-causes-out")))
    return parser.parse_args()


def main() -> None:
    args = parse()
    args.out.mkdir(parents=True, exist_ok=True)
    machine = Machine(args.wheelhouse, args.dry)
    lengths = Lengths(args.healthy, args.fault, args.calm)
    phases = phases_of(args.job, lengths, tuple(args.kinds.split(",")))
    instead = SIMULATED if args.dry == "simulated" else {}
    phases = [
        replace(each, fault=instead.get(each.kind, each.fault)) for each in phases if each.seconds
    ]
    story = Story(machine, args.job, phases, is_enough=is_cause_known)
    try:
        story.tell()
        story.close()
        found = rows(story, {"commit": args.commit, "machine": machine.name})
        keep(story, found, args.out)
    finally:
        machine.close()
    print(table([row for row in found if row["fault"] != CALM]))
    blamed = [row for row in found if row["fault"] == CALM and row["cause"]]
    print(f"causes named while nothing was slowed: {len(blamed)}")
    for row in blamed:
        print(f"  {row['phase']}: {row['cause']}")


def is_cause_known(phase: Phase, heard: list[Heard]) -> bool:
    """Whether the cause of the rank that was slowed has been known for a while."""
    known = told(phase, heard)
    at_s = known["cause_s"]
    return at_s is not None and heard[-1].at_s - heard[0].at_s >= at_s + CAUSE_KNOWN_S


def rows(story: Story, shared: dict[str, str]) -> list[dict[str, Any]]:
    """Return what Fleet said in each phase, beside what the job lost against its calm steps."""
    measured = {row["phase"]: row for row in story.rows()}
    found = []
    for passed in story.passed:
        heard = [h for h in story.heard if passed.began_s <= h.at_s <= passed.ended_s]
        row = told(passed.phase, heard)
        lost = lost_by(measured["healthy"], measured[passed.phase.name], row["fault"])
        found.append(shared | {"job": story.mode, "phase": passed.phase.name, "lost": lost} | row)
    return found


def lost_by(calm: dict[str, Any], slow: dict[str, Any], kind: str) -> float | None:
    figure = "step_ms_mean" if kind in PERIODIC else "step_ms_median"
    if kind == CALM or not calm[figure] or not slow[figure]:
        return None
    return round(1.0 - calm[figure] / slow[figure], 4)


def told(phase: Phase, heard: list[Heard]) -> dict[str, Any]:
    """Return what was said about the rank that was slowed; in a calm phase, about anybody."""
    rank = phase.fault.get("rank")
    named_s = cause_s = None
    said: dict[str, Any] = {}
    for each in heard:
        for verdict in each.verdicts:
            is_open = verdict["state"] not in ("resolved", "recovering")
            is_new = verdict["since"] >= heard[0].at_s - 5.0
            if rank not in (None, verdict.get("rank")) or not (is_open and is_new):
                continue
            after_s = round(each.at_s - heard[0].at_s, 1)
            said = verdict if verdict.get("cause") or not said.get("cause") else said
            if verdict["state"] == "straggler" and named_s is None:
                named_s = after_s
            if cause_s is None and not verdict.get("cause", "unknown").startswith("unknown"):
                cause_s = after_s
    cause = said.get("cause", "")
    return {
        "fault": phase.kind,
        "rank": rank,
        "named_s": named_s,
        "class": said.get("class"),
        "loss": said.get("loss"),
        "loss_error": said.get("loss_error"),
        "cause_s": cause_s,
        "right": bool(re.match(EXPECTED.get(phase.kind, "$"), cause)),
        "cause": cause,
        "next": said.get("next", ""),
    }


def table(found: list[dict[str, Any]]) -> str:
    lines = [COLUMNS, *(tuple(_cell(row.get(name)) for name in COLUMNS) for row in found)]
    widths = [max(len(line[index]) for line in lines) for index in range(len(COLUMNS))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    )


def _cell(value: Any) -> str:
    return "" if value is None else str(value)


def keep(story: Story, found: list[dict[str, Any]], out: Path) -> None:
    """Write the rows and everything that Fleet and agent said."""
    (out / "host-causes.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    for name in ("agent.log", "fleet.log", "job.log"):
        (out / name).write_bytes((story.folder / name).read_bytes()[-1_000_000:])
    (out / "screens.txt").write_text(story.screens())


if __name__ == "__main__":
    main()
