"""One job with Fleet and agent beside it, phase by phase."""

import json
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.hardware.real_jobs.machine import Job, Machine
from tests.hardware.real_jobs.plan import DRIVEN, Phase
from tests.hardware.real_jobs.pressure import Pressure
from tests.hardware.real_jobs.processes import rank_processes
from tests.hardware.real_jobs.recorder import Recorder, pack
from tests.hardware.real_jobs.rows import Heard, Passed, Run, rows_of
from tests.hardware.real_jobs.services import Services
from tests.hardware.real_jobs.steps import read_job

POLL_S = 1.0
LOGS = ("agent.log", "fleet.log", "job.log")
LOG_BYTES = 100_000


class Story:
    """Runs the phases of one job and keeps what was said when."""

    def __init__(
        self,
        machine: Machine,
        mode: str,
        phases: list[Phase],
        share: int,
        is_enough: Callable[[Phase, list[Heard]], bool] = lambda _, __: False,
    ) -> None:
        """`is_enough` may end a phase early, given what was heard in it."""
        self.machine, self.mode, self.phases, self.share = machine, mode, phases, share
        self.is_enough = is_enough
        self.folder = machine.folder / f"{mode}-{time.monotonic_ns()}"
        self.folder.mkdir()
        self.passed: list[Passed] = []
        self.heard: list[Heard] = []
        self.screens: list[str] = []
        self.facts: dict[str, Any] = {}
        self.problem = ""
        self.up_s = self.phase_s = 0.0

    def tell(self) -> None:
        """Run everything; a job that fails is a problem of its own, not the end of the others."""
        job = Job(self.machine, self.mode, self.folder, share=self.share, with_plugin=True)
        services = Services(self.mode, job.rings, self.folder)
        self.recorder = Recorder(job.rings)
        try:
            self.facts["start_s"] = round(job.wait_until_up(), 1)
            self.up_s = time.time()
            self.say(f"up after {self.facts['start_s']:.0f} s")
            services.require_answers()
            for phase in self.phases:
                self._pass(phase, job, services)
        except Exception as error:  # noqa: BLE001 - whatever it is, the other jobs go on
            self.problem = str(error)
            self.say(self.problem)
        finally:
            job.close()
            self.recorder.close()
            services.close()

    def say(self, text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {self.mode}: {text}", flush=True)

    def _pass(self, phase: Phase, job: Job, services: Services) -> None:
        cpu_s, pressure = services.agent_cpu_s(), None
        driven = any(kind in phase.fault for kind in DRIVEN)
        began_s, began = time.time(), time.monotonic()
        self.phase_s = began_s
        if driven:
            try:
                ranks = rank_processes(job.process.pid)
                pressure = Pressure(ranks[phase.fault["rank"]], phase.fault)
            except (OSError, KeyError) as error:
                self.say(f"{phase.name} is left out: {error!r}")
                return
        else:
            job.slow(phase.fault)
        try:
            while time.monotonic() - began < phase.seconds:
                job.require_running()
                self._listen(services)
                if self.is_enough(phase, [one for one in self.heard if one.at_s >= began_s]):
                    break
                time.sleep(POLL_S)
        finally:
            if pressure is not None:
                pressure.close()
            self.passed.append(Passed(phase, began_s, time.time()))
            self.recorder.mark(phase.name)
        if phase.fault:
            self.screens.append(f"== {phase.name}\n{services.screen()}")
        took_s = time.monotonic() - began
        shares = self.facts.setdefault("agent_cpu", {})
        shares[phase.name] = round((services.agent_cpu_s() - cpu_s) / took_s, 4)
        self._say_row()

    def _listen(self, services: Services) -> None:
        verdicts, ranks = services.status()
        now_s = time.time()
        last = self.heard[-1] if self.heard else Heard(0.0, [])
        # once in every phase even if nothing changes
        if last.verdicts != verdicts or last.at_s < self.phase_s:
            self.heard.append(Heard(now_s, verdicts))
        if ranks.get("judged") and "judged_s" not in self.facts:
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
        self.say(f"{row['phase']}: {told} others {row['others']} {row['events'][:2]}")

    def keep(self, target: Path, rows: list[dict[str, Any]]) -> None:
        """Write the rings, the step times, everything that was said and the logs."""
        extra = {path.name: path.read_bytes() for path in self.folder.glob("steps_*.jsonl")}
        for name in LOGS:
            extra[name] = (self.folder / name).read_bytes()[-LOG_BYTES:]
        heard = [json.dumps({"at": each.at_s, "verdicts": each.verdicts}) for each in self.heard]
        extra["heard.jsonl"] = "\n".join(heard).encode()
        extra["screens.txt"] = "\n".join(self.screens).encode()
        extra["truth.json"] = json.dumps(self._truth(rows), indent=1).encode()
        marks = [
            mark
            for mark, passed in zip(self.recorder.marks, self.passed, strict=False)
            if passed.phase.fault or passed.phase.name == "healthy"
        ]
        pack(self.recorder.heads, self.recorder.records(), marks, extra, target)

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
