"""One job with Fleet and agent beside it, phase by phase."""

import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from tests.hardware.real_jobs.archive import pack
from tests.hardware.real_jobs.machine import Job, Machine
from tests.hardware.real_jobs.plan import DRIVEN, Phase
from tests.hardware.real_jobs.pressure import Pressure
from tests.hardware.real_jobs.processes import rank_processes
from tests.hardware.real_jobs.recorder import Recorder
from tests.hardware.real_jobs.rows import Heard, Passed, Run, rows_of
from tests.hardware.real_jobs.services import Services
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
        is_enough: Callable[[Phase, list[Heard]], bool] = lambda _, __: False,
    ) -> None:
        """`is_enough` may end phases early, given what was heard in them."""
        self.mode, self.phases, self.is_enough = mode, phases, is_enough
        self.folder = machine.folder / f"{mode}-{time.monotonic_ns()}"
        self.folder.mkdir()
        self.rings = Path(tempfile.mkdtemp(prefix="ingero-real-jobs-", dir="/dev/shm"))
        self.services = Services(self.rings, self.folder)
        self.job = Job(machine, mode, self.folder, rings=self.rings)
        self.recorder = Recorder(self.rings)
        self.passed: list[Passed] = []
        self.heard: list[Heard] = []
        self.facts: dict[str, Any] = {}
        self.problem = ""
        self.up_s = self.phase_s = 0.0

    def tell(self) -> None:
        """Run all phases; a job that fails is a problem of its own, not the end of others."""
        try:
            self.facts["start_s"] = round(self.job.wait_until_up(), 1)
            self.services.require_answers()
            self.up_s = time.time()
            self.say(f"up after {self.facts['start_s']:.0f} s")
            for phase in self.phases:
                self._pass(phase)
        except Exception as error:  # noqa: BLE001 - whatever it is, other jobs go on
            self.problem = str(error)
            self.say(self.problem)

    def close(self) -> None:
        """End the job, Fleet and agent; what was recorded stays."""
        self.job.close()
        self.recorder.close()
        self.services.close()
        shutil.rmtree(self.rings, ignore_errors=True)

    def say(self, text: str) -> None:
        print(f"{time.strftime('%H:%M:%S')} {self.mode}: {text}", flush=True)

    def _pass(self, phase: Phase) -> None:
        """Wait until the phase is over: as planned, or earlier where enough was heard."""
        cpu_s, began_s, began = self.services.agent_cpu_s(), time.time(), time.monotonic()
        self.phase_s = began_s
        try:
            pressure = self._begin(phase)
        except (OSError, KeyError) as error:
            self.say(f"{phase.name} is left out: {error!r}")
            return
        end = began + phase.seconds
        screen = self.folder / f"screen-{phase.name}.txt"
        try:
            while (left_s := end - time.monotonic()) > 0:
                self.job.require_running()
                self._listen()
                if self.is_enough(phase, [one for one in self.heard if one.at_s >= began_s]):
                    break
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

    def _begin(self, phase: Phase) -> Pressure | None:
        """Slow a rank as the phase says: by the control file, or from outside."""
        is_driven = any(kind in phase.fault for kind in DRIVEN)
        self.job.slow({} if is_driven else phase.fault)  # what slowed the phase before ends here
        if not is_driven:
            return None
        ranks = rank_processes(self.job.process.pid)
        return Pressure(ranks[phase.fault["rank"]], phase.fault)

    def _listen(self) -> None:
        verdicts, ranks = self.services.status(self.mode)
        now_s = time.time()
        last = self.heard[-1] if self.heard else Heard(0.0, [])
        # once in every phase even if nothing changes
        if last.verdicts != verdicts or last.at_s < self.phase_s:
            self.heard.append(Heard(now_s, verdicts))
        if ranks.get("judged", 0) and "judged_s" not in self.facts:
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

    def keep(self, folder: Path, rows: list[dict[str, Any]]) -> list[Path]:
        """Write the rings, the step times, everything that was said and the logs."""
        extra = {path.name: path.read_bytes() for path in self.folder.glob("steps_*.jsonl")}
        for log in self.folder.glob("*.log"):
            extra[log.name] = log.read_bytes()[-LOG_BYTES:]
        heard = [json.dumps({"at": each.at_s, "verdicts": each.verdicts}) for each in self.heard]
        extra["heard.jsonl"] = "\n".join(heard).encode()
        extra["screens.txt"] = self.screens().encode()
        extra["truth.json"] = json.dumps(self._truth(rows), indent=1).encode()
        recorder = self.recorder
        return pack(recorder.heads, recorder.records(), recorder.marks, extra, folder, self.mode)

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
