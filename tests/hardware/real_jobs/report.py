"""Turns rows of real jobs into the tables and pictures of docs/explain/real-jobs.md.

python -m tests.hardware.real_jobs.report rows.json …     # adds their rows to docs/real-jobs.json
"""

import argparse
import json
import re
from collections.abc import Iterable
from pathlib import Path

from tests.hardware.real_jobs.pictures import loss_picture, pace_picture
from tests.hardware.real_jobs.plan import CALM, counted_calm
from tests.hardware.real_jobs.rows import COSTLESS, COSTLY, Row, write

DOCS = Path(__file__).parents[3] / "docs"
ROWS = DOCS / "real-jobs.json"
PAGE = DOCS / "explain" / "real-jobs.md"
PACE_PICTURE = DOCS / "pictures" / "real-jobs.svg"
LOSS_PICTURE = DOCS / "pictures" / "real-jobs-loss.svg"
_HEAD = (
    "| job | slowed | step | the job lost | named after | class | said loss | others named "
    "| right | commit |"
)
_FAULTS = {
    "gpu": "{gpu:.0%} more GPU work",
    "held": "GPU held up for {gpu:.0%} of a step",
    "host": "host sleeps {host:.0%} of a step",
    "stall": "host stops for {host:.1f} steps, every {every}",
    "lock": "waits for a lock, {lock:.0%} of a step",
    "read": "reads from the disk, {read:.0%} of a step",
    "collect": "collects garbage for {collect:.1f} steps, every {every}",
    "hog": "a busy program on its core",
    "quota": "CPU quota of {quota:.0%}",
}


def table(rows: Iterable[Row]) -> str:
    """Return what was said about every fault, the latest row of each job and kind."""
    lines = [_HEAD, "|" + "---|" * _HEAD.count(" | ") + "---|"]
    for row in latest(row for row in rows if row["kind"] not in (CALM, "overhead")):
        lines.append(f"| {' | '.join(_cells(row))} |")
    return "\n".join(lines)


def _cells(row: Row) -> list[str]:
    fault = row["fault"]
    # matrix products in earlier runs, kernels that only wait since launches are timed
    kind = "held" if "fault_host_ms" in row and row["kind"] == "gpu" else row["kind"]
    slowed = f"rank {fault['rank']}: " + _FAULTS[kind].format(**fault)
    others = ", ".join(f"rank {each['rank']}" for each in row["others"]) or "nobody"
    named = "–" if row["named_s"] is None else f"{row['named_s']:.0f} s"
    said = row["class"] or "–"
    if row.get("state") == "late":
        said += " (late)"
    right = {True: "yes", False: "; ".join(row["remarks"]), None: "not measured"}[row["right"]]
    if row["right"] and row["named_s"] is None and row["truth"] >= COSTLESS:
        right = f"yes, below {COSTLY:.0%}"
    return [
        _job(row),
        slowed,
        _milliseconds(row["step_ms_median"]),
        _share(row["truth"], row["truth_error"]),
        named,
        said,
        _said(row),
        others,
        right,
        row["commit"],
    ]


def _job(row: Row) -> str:
    """Return the job, and those that shared the GPU with it."""
    beside = row.get("beside", ())
    return f"{row['job']} beside {' and '.join(beside)}" if beside else str(row["job"])


def _milliseconds(value: float | None) -> str:
    return "–" if value is None else f"{value:.1f} ms"


def _share(value: float | None, error: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.1%}" + (f" ± {error:.1%}" if error else "")


def _said(row: Row) -> str:
    text = _share(row.get("loss"), row.get("loss_error"))
    return f"at most {text}" if row.get("at_most") and row.get("loss") is not None else text


def calm_table(rows: Iterable[Row]) -> str:
    """Return how long every job ran without a fault, and who was named meanwhile."""
    rows = list(rows)
    head = (
        "| job | calm seconds | judged | with the last commit | step | named meanwhile | events |"
    )
    lines = [head, "|---|---|---|---|---|---|---|"]
    judged = judged_seconds(rows)
    left_out = []
    for job in dict.fromkeys(row["job"] for row in rows if row["kind"] == CALM):
        found = counted_calm(rows, job)
        names = [f"rank {each['rank']}" for row in found for each in row["others"]]
        steps = sorted(row["step_ms_median"] for row in found if row["step_ms_median"])
        step = _milliseconds(steps[len(steps) // 2] if steps else None)
        events = sum(len(row["events"]) for row in found)
        last = sum(row["seconds"] for row in found if row["commit"] == found[-1]["commit"])
        lines.append(
            f"| {job} | {sum(row['seconds'] for row in found):.0f} "
            f"| {sum(judged[id(row)] for row in found):.0f} | {last:.0f} | {step} "
            f"| {', '.join(names) or 'nobody'} | {events or 'none'} |"
        )
        left_out += [row for row in rows if _is_left_out(row, job, found)]
    return "\n".join(lines + _left_out_text(left_out))


def _is_left_out(row: Row, job: str, counted: list[Row]) -> bool:
    return row["job"] == job and row["kind"] == CALM and all(row is not each for each in counted)


def _left_out_text(rows: list[Row]) -> list[str]:
    """Say which calm phases do not count, because their engine blamed a rank of that job."""
    runs: dict[tuple[str, str], float] = {}
    for row in rows:
        runs[row["job"], row["commit"]] = runs.get((row["job"], row["commit"]), 0) + row["seconds"]
    said = [f"`{job}` with {commit} ({seconds:.0f} s)" for (job, commit), seconds in runs.items()]
    why = "a rank that was not slow was named in that run"
    return ["", f"Not counted: {', '.join(said)}; {why}."] if said else []


def judged_seconds(rows: Iterable[Row]) -> dict[int, float]:
    """Return for how much of every phase ranks were judged, by the id of its row."""
    found, at_s, judged_s = {}, 0.0, float("inf")
    for row in rows:
        if row["kind"] == "overhead":
            continue
        if row["phase"] == "healthy":
            known = row.get("judged_s")
            at_s, judged_s = 0.0, float("inf") if known is None else known
        at_s += row["seconds"]
        found[id(row)] = min(max(at_s - judged_s, 0.0), row["seconds"])
    return found


def host_table(rows: Iterable[Row]) -> str:
    """Return what GPU faults cost the host that launches them."""
    lines = ["| job | added on the GPU | launching it took | share | whole step launched later |"]
    lines.append("|---|---|---|---|---|")
    for row in latest(row for row in rows if row["kind"] == "gpu"):
        if "fault_host_ms" not in row:
            continue
        added, took = row.get("fault_gpu_ms"), row["fault_host_ms"]
        share = f"{took / added:.1%}" if added else "–"
        late = row.get("launched_late_ms")
        later = "–" if late is None else f"{late:+.2f} ms"
        whole = "–" if added is None else f"{added:.2f} ms"
        lines.append(f"| {row['job']} | {whole} | {took:.2f} ms | {share} | {later} |")
    return "\n".join(lines) if len(lines) > 2 else "No run has timed this yet."


def overhead_table(rows: Iterable[Row]) -> str:
    """Return what plugin and agent add to a step, and the CPU time of the agent."""
    lines = ["| job | step without | step with | added | agent, share of a core |"]
    lines.append("|---|---|---|---|---|")
    for row in latest(row for row in rows if row["kind"] == "overhead"):
        without = ", ".join(_milliseconds(ms) for ms in row["without_ms"]) or "–"
        added = "–" if row["added"] is None else f"{row['added']:+.1%}"
        cpu = "–" if row["agent_cpu"] is None else f"{row['agent_cpu']:.1%}"
        lines.append(
            f"| {_job(row)} | {without} | {_milliseconds(row['with_ms'])} | {added} | {cpu} |"
        )
    return "\n".join(lines)


def latest(rows: Iterable[Row]) -> list[Row]:
    """Return the last row of each job and kind of fault, in the order of their first ones."""
    found: dict[tuple[str, str], Row] = {}
    for row in rows:
        found[row["job"], row["kind"]] = row
    return list(found.values())


def summary(rows: list[Row]) -> str:
    """Return a sentence with the counts that matter."""
    if not rows:
        return "No run has been recorded yet."
    faults = latest(row for row in rows if row["kind"] not in (CALM, "overhead"))
    costly = [row for row in faults if row["truth"] is not None and row["truth"] >= COSTLY]
    named = [row for row in costly if row["named_s"] is not None]
    right = [row for row in faults if row["right"]]
    used = {row["commit"] for row in faults}
    calm = [row for row in rows if row["kind"] == CALM and row["commit"] in used]
    minutes = sum(row["seconds"] for row in calm) / 60
    false = sum(len(row["others"]) for row in calm)
    commits = ", ".join(dict.fromkeys(row["commit"] for row in faults)) or "none"
    return (
        f"Of {len(faults)} faults, {len(costly)} cost at least {COSTLY:.0%} of the step; "
        f"{len(named)} of these were named. {len(right)} of all {len(faults)} were told right: "
        f"the rank in time, its class and its loss, and nobody named for less than "
        f"{COSTLESS:.1%}. In {minutes:.1f} calm minutes, {false or 'no'} "
        f"rank{'s were' if false > 1 else ' was'} named. Commits: {commits}."
    )


def page(text: str, rows: list[Row]) -> str:
    """Return the page with its generated parts brought up to date."""
    parts = {
        "summary": summary(rows),
        "faults": table(rows),
        "hosts": host_table(rows),
        "calm": calm_table(rows),
        "overhead": overhead_table(rows),
    }
    for name, content in parts.items():
        begin, end = f"<!-- {name}: generated -->", f"<!-- {name}: end -->"
        pattern = re.compile(f"{re.escape(begin)}.*?{re.escape(end)}", re.DOTALL)
        assert pattern.search(text), f"the page has no part {name}"
        replaced = f"{begin}\n{content}\n{end}"
        text = pattern.sub(lambda _, new=replaced: new, text)
    return text


def merged(files: Iterable[list[Row]]) -> list[Row]:
    """Return the rows of all files, each once: a run keeps the rows that it began with."""
    found: dict[str, Row] = {}
    for rows in files:
        for row in rows:
            found.setdefault(json.dumps(row, sort_keys=True), row)
    return list(found.values())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("rows", type=Path, nargs="*")
    paths = (ROWS, *parser.parse_args().rows)
    rows = merged(json.loads(path.read_text()) for path in paths)
    write(rows, ROWS)
    PAGE.write_text(page(PAGE.read_text(), rows))
    PACE_PICTURE.write_text(pace_picture(rows))
    LOSS_PICTURE.write_text(loss_picture(rows))
    print(table(rows))
    print(calm_table(rows))


if __name__ == "__main__":
    main()
