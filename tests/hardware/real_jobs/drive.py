"""Real PyTorch jobs with Fleet and agent beside them, slowed phase by phase; who was named when?

    make wheelhouse                                              # once, where pip works
    bash tests/hardware/real_jobs/run.sh --only ddp,fsdp --seconds-budget 540   # GPU machine
    bash tests/hardware/real_jobs/run.sh --dry simulated --only ddp    # anywhere

Jobs run one after the other; `ddp+fsdp` runs two at the same time, each with half of the GPU, and
`ddp:lock/read` chooses the faults of one job. Rows of earlier runs are read from --rows and kept: a
fault that has a row of this commit is not run again without --again. Leaves rows.json and one
archive per job in --out, and prints one table.
"""

import argparse
import json
import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from tests.hardware.real_jobs.machine import WORLD, Job, JobEnded, Machine
from tests.hardware.real_jobs.plan import CALM, CAUSES, FAULTS, LENGTHS, Lengths, Phase, phases_of
from tests.hardware.real_jobs.report import table
from tests.hardware.real_jobs.steps import read_job
from tests.hardware.real_jobs.story import Story

ROOT = Path(__file__).parents[3]
KINDS = ("gpu", "host", "stall")
START_S, END_S = 25.0, 12.0  # what a job takes besides its phases
BARE_S = 12.0  # of a run without plugin and agent
ARCHIVE_BYTES = 16 << 20


def main() -> None:
    args = parse()
    began = time.monotonic()
    args.out.mkdir(parents=True, exist_ok=True)
    rows = json.loads(args.rows.read_text()) if args.rows.exists() else []
    fresh: list[dict[str, Any]] = []
    machine = Machine(args.wheelhouse, args.dry)
    left_out, keepers = [], []
    try:
        for group in args.only.split(","):
            plans = dict(plan_of(job, args, rows) for job in group.split("+"))
            plans = {mode: phases for mode, phases in plans.items() if phases}
            need_s = seconds_needed(plans, args.overhead)
            if not plans or need_s > args.seconds_budget - (time.monotonic() - began):
                left_out.append(group if plans else f"{group} (has its rows)")
                continue
            fresh += run_group(machine, plans, args, keepers)
            (args.out / "rows.json").write_text(dump(rows + fresh))
    finally:
        for keeper in keepers:
            keeper.join()
        machine.close()
    print(table(fresh))
    print(f"left out: {', '.join(left_out) or 'nothing'}; {time.monotonic() - began:.0f} s in all")


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default=",".join(FAULTS), help="jobs, in this order")
    parser.add_argument("--kinds", default=",".join(KINDS), help=f"of {[*KINDS, *CAUSES]}")
    parser.add_argument("--lengths", choices=LENGTHS, default="full")
    for name in ("healthy", "fault", "calm"):
        parser.add_argument(f"--{name}", type=float, help="seconds of such a phase")
    parser.add_argument("--seconds-budget", type=float, default=540.0)
    parser.add_argument(
        "--overhead",
        choices=("none", "after", "both"),
        default="none",
        help="also run without plugin and agent: afterwards, or before and afterwards",
    )
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


def commit() -> str:
    found = subprocess.run(
        ["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"],
        capture_output=True,
        text=True,
        check=False,
    )
    return found.stdout.strip() or "unknown"


def plan_of(
    job: str, args: argparse.Namespace, rows: list[dict[str, Any]]
) -> tuple[str, list[Phase]]:
    """Return a job and its phases: a fault that has a row of this commit is not run again."""
    mode, _, own = job.partition(":")
    usual = LENGTHS[args.lengths]
    lengths = Lengths(
        healthy=usual.healthy if args.healthy is None else args.healthy,
        fault=usual.fault if args.fault is None else args.fault,
        calm=usual.calm if args.calm is None else args.calm,
    )
    known = {row["kind"] for row in rows if row["job"] == mode and row["commit"] == args.commit}
    kinds = own.split("/") if own else [kind for kind in args.kinds.split(",") if kind]
    wanted = tuple(kind for kind in kinds if args.again or kind not in known)
    return mode, phases_of(mode, lengths, wanted) if wanted or not kinds else []


def seconds_needed(plans: dict[str, list[Phase]], overhead: str) -> float:
    longest = max((sum(phase.seconds for phase in phases) for phases in plans.values()), default=0)
    bare = {"none": 0, "after": 1, "both": 2}[overhead] * (START_S + BARE_S)
    return longest + START_S + END_S + bare


def run_group(
    machine: Machine,
    plans: dict[str, list[Phase]],
    args: argparse.Namespace,
    keepers: list[threading.Thread],
) -> list[dict[str, Any]]:
    """Run these jobs at the same time; archives are written while the next ones start."""
    share = 100 // (WORLD * len(plans))
    bare = [run_bare(machine, list(plans), share)] if args.overhead == "both" else []
    stories = [Story(machine, mode, phases, share) for mode, phases in plans.items()]
    threads = [threading.Thread(target=story.tell) for story in stories]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    bare += [run_bare(machine, list(plans), share)] if args.overhead != "none" else []
    rows = []
    for story in stories:
        found = story.rows()
        shared = {"commit": args.commit, "together": len(plans), "machine": machine.name}
        rows += [shared | row | run_facts(story, row) for row in found]
        without = [each[story.mode] for each in bare if story.mode in each]
        if without and found:
            rows.append(shared | overhead_row(story.mode, without, found, story.facts))
        keeper = threading.Thread(target=keep, args=(story, found, args.out))
        keeper.start()
        keepers.append(keeper)
    return rows


def run_facts(story: Story, row: dict[str, Any]) -> dict[str, Any]:
    facts = {"agent_cpu": story.facts.get("agent_cpu", {}).get(row["phase"])}
    if row["phase"] == "healthy":
        facts |= {name: story.facts.get(name) for name in ("start_s", "judged_s")}
    return facts | ({"problem": story.problem[:300]} if story.problem else {})


def keep(story: Story, rows: list[dict[str, Any]], out: Path) -> None:
    target = out / f"{story.mode}.tar"
    story.keep(target, rows)
    size = target.stat().st_size
    story.say(f"{target.name}: {size:,} bytes{', too large' if size > ARCHIVE_BYTES else ''}")


def run_bare(machine: Machine, modes: list[str], share: int) -> dict[str, float]:
    """Return the median step in milliseconds without plugin, agent and Fleet, of each job."""
    jobs = {}
    for mode in modes:
        folder = machine.folder / f"{mode}-bare-{time.monotonic_ns()}"
        folder.mkdir()
        jobs[mode] = Job(machine, mode, folder, share=share, with_plugin=False)
    found = {}
    try:
        for job in jobs.values():
            job.wait_until_up()
        began_s = time.time()
        time.sleep(BARE_S)
        for mode, job in jobs.items():
            steps = [each.between(began_s, time.time()) for each in read_job(job.folder)]
            medians = [float(np.median(each)) for each in steps if len(each)]
            if medians:
                found[mode] = round(float(np.median(medians)), 3)
    except JobEnded as error:
        print(error, flush=True)
    finally:
        for job in jobs.values():
            job.close()
    return found


def overhead_row(
    mode: str, without: list[float], rows: list[dict[str, Any]], facts: dict[str, Any]
) -> dict[str, Any]:
    """Return the cost of plugin and agent: steps without them against the last calm phase."""
    calm = [row["step_ms_median"] for row in rows if row["kind"] == CALM and row["steps"]]
    beside = calm[-1] if len(without) == 1 else sum(calm) / len(calm)
    return {
        "job": mode,
        "phase": "overhead",
        "kind": "overhead",
        "without_ms": without,
        "with_ms": round(beside, 3),
        "added": round(beside / (sum(without) / len(without)) - 1, 4),
        "agent_cpu": facts.get("agent_cpu", {}).get("healthy"),
    }


def dump(rows: list[dict[str, Any]]) -> str:
    """Return the rows as JSON, one per line."""
    lines = ",\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    return f"[\n{lines}\n]\n"


if __name__ == "__main__":
    main()
