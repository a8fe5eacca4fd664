"""Real PyTorch jobs with Fleet and agent beside them, slowed phase by phase; who was named when?

    make wheelhouse                                              # once, where pip works
    bash tests/hardware/real_jobs/run.sh --only ddp,fsdp --seconds-budget 540   # GPU machine
    bash tests/hardware/real_jobs/run.sh --dry simulated --only ddp    # anywhere

Jobs run one after the other; `ddp+fsdp` runs two side by side, each with half of the GPU, under one
Fleet and one agent, and `ddp:lock/read` chooses the faults of one job. Jobs side by side are slowed
in turn. Rows of earlier runs are read from --rows and kept: a fault that has a row of this commit
is not run again without --again. Leaves rows.json, written as the run goes on, and one archive per
job in --out, and prints one table.
"""

import argparse
import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
from tests.hardware import host_causes
from tests.hardware.real_jobs.machine import Job, JobEnded, Machine, commit
from tests.hardware.real_jobs.node import Node
from tests.hardware.real_jobs.plan import CALM, CAUSES, FAULTS, LENGTHS, Lengths, Phase, take_turns
from tests.hardware.real_jobs.report import table
from tests.hardware.real_jobs.rows import write
from tests.hardware.real_jobs.steps import read_job
from tests.hardware.real_jobs.story import Story

ROOT = Path(__file__).parents[3]
KINDS = ("gpu", "host", "stall")
START_S, END_S = 25.0, 12.0  # what a job takes besides its phases
BARE_S = 12.0  # of a run without plugin and agent
KEEP_S = 5.0
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
            wanted = dict(kinds_of(job, args, rows) for job in group.split("+"))
            jobs = {mode: kinds for mode, kinds in wanted.items() if kinds or not args.kinds}
            plans = take_turns(jobs, lengths_of(args))
            need_s = seconds_needed(plans, args.overhead)
            if not plans or need_s > args.seconds_budget - (time.monotonic() - began):
                left_out.append(group if plans else f"{group} (has its rows)")
                continue
            fresh += run_group(machine, plans, args, keepers, rows + fresh)
            write(rows + fresh, args.out / "rows.json")
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


def lengths_of(args: argparse.Namespace) -> Lengths:
    usual = LENGTHS[args.lengths]
    return Lengths(
        healthy=usual.healthy if args.healthy is None else args.healthy,
        fault=usual.fault if args.fault is None else args.fault,
        calm=usual.calm if args.calm is None else args.calm,
    )


def kinds_of(
    job: str, args: argparse.Namespace, rows: list[dict[str, Any]]
) -> tuple[str, tuple[str, ...]]:
    """Return a job and its faults: one that has a row of this commit is not run again."""
    mode, _, own = job.partition(":")
    known = {row["kind"] for row in rows if row["job"] == mode and row["commit"] == args.commit}
    kinds = own.split("/") if own else [kind for kind in args.kinds.split(",") if kind]
    return mode, tuple(kind for kind in kinds if args.again or kind not in known)


def seconds_needed(plans: dict[str, list[Phase]], overhead: str) -> float:
    longest = max((sum(phase.seconds for phase in phases) for phases in plans.values()), default=0)
    bare = {"none": 0, "after": 1, "both": 2}[overhead] * (START_S + BARE_S)
    return longest + START_S + END_S + bare


def run_group(
    machine: Machine,
    plans: dict[str, list[Phase]],
    args: argparse.Namespace,
    keepers: list[threading.Thread],
    before: list[dict[str, Any]],
) -> list[dict[str, Any]]:
    """Run these jobs side by side; archives are written while the next ones start."""
    bare = [run_bare(machine, list(plans))] if args.overhead == "both" else []
    folder = machine.folder / f"node-{time.monotonic_ns()}"
    folder.mkdir()
    node = Node(folder, tuple(plans))
    stories = [Story(machine, mode, phases, node) for mode, phases in plans.items()]
    threads = [threading.Thread(target=story.tell) for story in stories]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        time.sleep(KEEP_S)  # what is known so far survives if this machine is taken away
        so_far = [row for story in stories for row in told(story, machine, args)]
        write(before + so_far, args.out / "rows.json")
    node.close()
    bare += [run_bare(machine, list(plans))] if args.overhead != "none" else []
    rows = []
    for story in stories:
        found = told(story, machine, args)
        without = [each[story.mode] for each in bare if story.mode in each]
        rows += found
        write_causes(story, shared_facts(story, machine, args), args.out)
        if without and any(row["kind"] == CALM and row["steps"] for row in found):
            row = overhead_row(story.mode, without, found, story.facts)
            rows.append(shared_facts(story, machine, args) | row)
        keeper = threading.Thread(target=keep, args=(story, found, args.out))
        keeper.start()
        keepers.append(keeper)
    return rows


def told(story: Story, machine: Machine, args: argparse.Namespace) -> list[dict[str, Any]]:
    """Return the rows of a job so far."""
    shared = shared_facts(story, machine, args)
    return [shared | row | run_facts(story, row) for row in story.rows()]


def shared_facts(story: Story, machine: Machine, args: argparse.Namespace) -> dict[str, Any]:
    others = [mode for mode in story.node.modes if mode != story.mode]
    together = len(story.node.modes)
    return {"commit": args.commit, "together": together, "machine": machine.name} | (
        {"beside": others} if others else {}
    )


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


def write_causes(story: Story, shared: dict[str, Any], out: Path) -> None:
    """Write what was said about the causes of slow hosts, as host_causes.py does."""
    kinds = {passed.phase.name: passed.phase.kind for passed in story.passed}
    if not kinds.keys() & {"healthy"} or not set(kinds.values()) & set(CAUSES):
        return
    found = [
        row for row in host_causes.rows(story, shared) if kinds[row["phase"]] in (CALM, *CAUSES)
    ]
    (out / "host-causes.json").write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    print(host_causes.table([row for row in found if row["fault"] != CALM]), flush=True)


def run_bare(machine: Machine, modes: list[str]) -> dict[str, float]:
    """Return the median step in milliseconds without plugin, agent and Fleet, of each job."""
    jobs = {}
    for mode in modes:
        folder = machine.folder / f"{mode}-bare-{time.monotonic_ns()}"
        folder.mkdir()
        jobs[mode] = Job(machine, mode, folder, jobs=len(modes), rings=None)
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


if __name__ == "__main__":
    main()
