"""One job with Fleet and agent beside it, phase by phase; other jobs may run on the same node."""

import json
import os
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.hardware.real_jobs.machine import WORLD, Job, Machine
from tests.hardware.real_jobs.node import Node
from tests.hardware.real_jobs.plan import DRIVEN, Phase
from tests.hardware.real_jobs.pressure import Pressure
from tests.hardware.real_jobs.processes import rank_processes
from tests.hardware.real_jobs.recorder import Recorder, pack
from tests.hardware.real_jobs.rows import Heard, Passed, Run, rows_of
from tests.hardware.real_jobs.steps import read_job

POLL_S = 1.0
SCREEN_S = 4.0  # before a fault ends, `ingero status` is asked
LOG_BYTES = 100_000


class Story:
    """Runs the phases of one job and keeps what was said when."""

    def __init__(
        self,
        machine: Machine,
        mode: str,
        phases: list[Phase],
        node: Node | None = None,
        is_enough: Callable[[Phase, list[Heard]], bool] = lambda _, __: False,
    ) -> None:
        """`is_enough` may end phases of a job that runs alone early, given what was heard."""
        self.mode, self.phases, self.is_enough = mode, phases, is_enough
        self.folder = machine.folder / f"{mode}-{time.monotonic_ns()}"
        self.folder.mkdir()
        self.is_alone, self.node = node is None, node or Node(self.folder, (mode,))
        self.machine, self.services = machine, self.node.services
        self.passed: list[Passed] = []
        self.heard: list[Heard] = []
        self.facts: dict[str, Any] = {}
        self.problem = ""
        self.up_s = self.phase_s = 0.0

    def tell(self) -> None:
        """Run everything; a job that fails is a problem of its own, not the end of the others."""
        rings, jobs = self.node.rings, len(self.node.modes)
        job = Job(self.machine, self.mode, self.folder, jobs=jobs, rings=rings)
        self.recorder = Recorder(rings, self.mode)
        try:
            self.facts["start_s"] = round(job.wait_until_up(), 1)
            self.up_s = time.time()
            self.say(f"up after {self.facts['start_s']:.0f} s")
            self.services.require_answers()
            ended = self.node.wait_for_others()
            for phase in self.phases:  # ends are planned, so that phases of all jobs begin together
                ended = self._pass(phase, job, ended + phase.seconds)
        except Exception as error:  # noqa: BLE001 - whatever it is, the other jobs go on
            self.problem = str(error)
            self.say(self.problem)
        finally:
            self.node.leave()
            job.close()
            self.recorder.close()
            if self.is_alone:
                self.node.close()

    def say(self, text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {self.mode}: {text}", flush=True)

    def _pass(self, phase: Phase, job: Job, end: float) -> float:
        """Return when the phase ended: as planned, or earlier where enough was heard."""
        cpu_s, began_s, began = self.services.agent_cpu_s(), time.time(), time.monotonic()
        self.phase_s = began_s
        try:
            pressure = self._begin(phase, job)
        except (OSError, KeyError) as error:
            self.say(f"{phase.name} is left out: {error!r}")
            return end - phase.seconds if self.is_alone else end
        screen = self.folder / f"screen-{phase.name}.txt"
        try:
            while (left_s := end - time.monotonic()) > 0:
                job.require_running()
                self._listen()
                if self.is_enough(phase, [one for one in self.heard if one.at_s >= began_s]):
                    end = time.monotonic()
                if phase.fault and left_s <= SCREEN_S and not screen.exists():
                    self.services.start_screen(screen)
                time.sleep(max(min(POLL_S, end - time.monotonic()), 0))
        finally:
            if pressure is not None:
                pressure.close()
            self.passed.append(Passed(phase, began_s, time.time()))
            self.recorder.mark(phase.name)
        took_s = time.monotonic() - began
        shares = self.facts.setdefault("agent_cpu", {})
        shares[phase.name] = round((self.services.agent_cpu_s() - cpu_s) / took_s, 4)
        self._say_row()
        return end

    def _begin(self, phase: Phase, job: Job) -> Pressure | None:
        """Slow a rank as the phase says: by the control file, or from outside."""
        is_driven = any(kind in phase.fault for kind in DRIVEN)
        job.slow({} if is_driven else phase.fault)  # what slowed the phase before ends here
        if not is_driven:
            return None
        ranks = rank_processes(job.process.pid)
        return Pressure(ranks[phase.fault["rank"]], phase.fault)

    def _listen(self) -> None:
        verdicts, ranks = self.services.status(self.mode)
        now_s = time.time()
        last = self.heard[-1] if self.heard else Heard(0.0, [])
        # once in every phase even if nothing changes
        if last.verdicts != verdicts or last.at_s < self.phase_s:
            self.heard.append(Heard(now_s, verdicts))
        if (
            ranks.get("judged", 0) > WORLD * (len(self.node.modes) - 1)
            and "judged_s" not in self.facts
        ):
            self.facts["judged_s"] = round(now_s - self.up_s, 1)

    def run(self) -> Run:
        """Return what happened so far."""
        return Run(self.mode, list(self.passed), list(self.heard), read_job(self.folder))

    def rows(self) -> list[dict[str, Any]]:
        return rows_of(self.run())

    def _say_row(self) -> None:
        row = self.rows()[-1]
        names = ("step_ms_median", "step_ms_mean", "named_s", "class", "loss", "loss_error")
        told = {name: row[name] for name in names if row.get(name) is not None}
        load = os.getloadavg()[0]  # over the number of cores, hosts wait for each other
        self.say(f"{row['phase']}: {told} others {row['others']} {row['events'][:2]} {load:.0f}")

    def keep(self, target: Path, rows: list[dict[str, Any]]) -> None:
        """Write the rings, the step times, everything that was said and the logs."""
        extra = {path.name: path.read_bytes() for path in self.folder.glob("steps_*.jsonl")}
        for log in (self.folder / "job.log", *self.node.folder.glob("*.log")):
            extra[log.name] = log.read_bytes()[-LOG_BYTES:]
        heard = [json.dumps({"at": each.at_s, "verdicts": each.verdicts}) for each in self.heard]
        extra["heard.jsonl"] = "\n".join(heard).encode()
        extra["screens.txt"] = self.screens().encode()
        extra["truth.json"] = json.dumps(self._truth(rows), indent=1).encode()
        marks = [
            mark
            for mark, passed in zip(self.recorder.marks, self.passed, strict=False)
            if passed.phase.fault or passed.phase.name == "healthy"
        ]
        pack(self.recorder.heads, self.recorder.records(), marks, extra, target)

    def screens(self) -> str:
        """Return what `ingero status` printed near the end of each fault."""
        shown = sorted(self.folder.glob("screen-*.txt"), key=lambda path: path.stat().st_mtime)
        return "\n".join(f"== {path.stem}\n{path.read_text()}" for path in shown)

    def _truth(self, rows: list[dict[str, Any]]) -> dict[str, Any]:
        recordings = {}
        for passed, row in zip(self.passed, rows, strict=True):
            recordings[passed.phase.name] = {
                **asdict(passed),
                "step_ms_median": row["step_ms_median"],
                "step_ms_mean": row["step_ms_mean"],
                "truth": row.get("truth"),
            }
        return {"job": self.mode, "ranks": 8, "recordings": recordings}
