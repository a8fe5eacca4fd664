"""The rings of real jobs once more through agent and Fleet, by a hand-driven clock.

    python -m tests.hardware.real_jobs.replay OUT …       # folders or files, e.g. OUT/ddp-1.tar

Every job that came back as archives is replayed from its first step to its last by the present
code, and what it says is compared with the steps of the job as in the live run. Prints the same
tables; --rows writes the rows, and --said what was said when.
"""

import argparse
import json
import re
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from tests.hardware.real_jobs.archive import Archive, read
from tests.hardware.real_jobs.machine import commit
from tests.hardware.real_jobs.plan import Phase
from tests.hardware.real_jobs.report import calm_table, table
from tests.hardware.real_jobs.rows import Heard, Passed, Row, Run, rows_of, write
from tests.hardware.real_jobs.steps import Steps, read_job
from tests.support.replayed_rings import CLUSTER, Said, replay
from tests.support.ring_recordings import RankRecording, Recording

from ingero.contract.nccl_ring import HEADER, record_checks
from ingero.fleet.verdicts import VerdictService


def find_jobs(paths: Iterable[Path]) -> dict[str, list[Path]]:
    """Return the archives of every job, in the order of their parts."""
    files = [
        file
        for path in paths
        for file in (sorted(path.rglob("*.tar")) if path.is_dir() else [path])
    ]
    jobs: dict[str, list[Path]] = defaultdict(list)
    for file in sorted(files):
        if match := re.fullmatch(r"(\w+)-(\d+)\.tar", file.name):
            jobs[match[1]].append(file)
    return dict(jobs)


def replayed_rows(archive: Archive, job: str) -> tuple[list[Row], list[Said]]:
    """Return the rows of a job by what is said about its rings now."""
    heard: list[Heard] = []
    judged_s: list[float] = []

    def listen(now_s: float, service: VerdictService) -> None:
        if service.rank_counts(CLUSTER).judged:
            judged_s.append(now_s)
        verdicts = msgspec.to_builtins(service.recent_verdicts(CLUSTER))
        heard.append(Heard(now_s, verdicts))

    result = replay(Recording(job, recorded_ranks(archive)), on_tick=listen)
    passed = phases_passed(archive)
    rows = rows_of(Run(job, passed, heard, steps_of(archive)))
    facts = {"commit": commit(), "together": 1, "machine": "replayed"}
    if judged_s:
        rows[0]["judged_s"] = round(judged_s[0] - passed[0].began_s, 1)
    return [facts | row for row in rows], result.said


def recorded_ranks(archive: Archive) -> tuple[RankRecording, ...]:
    found = []
    for name, records in archive.records.items():
        gaps = np.flatnonzero(np.diff(records["stamp"].astype(np.int64)) > 1) + 1
        records["stamp"] = np.arange(1, len(records) + 1, dtype=np.uint64)
        records["check"] = record_checks(records)
        header = archive.heads[name][: HEADER.itemsize]
        rank = int(np.frombuffer(header, HEADER)["global_rank"][0])
        found.append(RankRecording(name, rank, header, records, tuple(gaps.tolist())))
    return tuple(sorted(found, key=lambda each: each.rank))


def phases_passed(archive: Archive) -> list[Passed]:
    truth: dict[str, Any] = json.loads(archive.files["truth.json"])
    return [
        Passed(Phase(**each["phase"]), each["began_s"], each["ended_s"])
        for each in truth["recordings"].values()
    ]


def steps_of(archive: Archive) -> list[Steps]:
    with tempfile.TemporaryDirectory() as folder:
        for name, data in archive.files.items():
            if name.startswith("steps_"):
                (Path(folder) / name).write_bytes(data)
        return read_job(Path(folder))


def describe(said: list[Said], passed: list[Passed]) -> list[str]:
    """Return what was said when, in seconds since the phase began that it was said in."""
    lines = []
    for each in said:
        phase = max((p for p in passed if p.began_s <= each.at_s), key=lambda p: p.began_s)
        verdict = each.verdict
        loss = (
            "" if verdict.loss is None else f" {verdict.loss:.1%} ± {verdict.loss_error or 0:.1%}"
        )
        lines.append(
            f"  {phase.phase.name} +{each.at_s - phase.began_s:.0f} s: rank {verdict.rank} "
            f"{verdict.state.value} {verdict.cause_class.value}{loss} | {verdict.evidence}"
        )
    return lines


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("archives", type=Path, nargs="+")
    parser.add_argument("--only", default="", help="jobs, in this order")
    parser.add_argument("--rows", type=Path, help="a file for the rows")
    parser.add_argument("--said", action="store_true", help="also print what was said when")
    args = parser.parse_args()
    jobs, rows = find_jobs(args.archives), []
    for job in filter(None, args.only.split(",")) if args.only else jobs:
        archive = read(jobs[job])
        found, said = replayed_rows(archive, job)
        rows += found
        print(f"{job}: {sum(map(len, archive.records.values())):,} records", flush=True)
        if args.said:
            print("\n".join(describe(said, phases_passed(archive))), flush=True)
    print(table(rows))
    print(calm_table(rows))
    if args.rows:
        write(rows, args.rows)


if __name__ == "__main__":
    main()
