"""What plugin and agent cost: the same job without them."""

import time
from typing import Any

import numpy as np
from tests.hardware.real_jobs.machine import Job, JobEnded, Machine
from tests.hardware.real_jobs.plan import CALM
from tests.hardware.real_jobs.rows import Row
from tests.hardware.real_jobs.steps import read_job

SETTLE_S, MEASURE_S = 3.0, 10.0


def run_bare(machine: Machine, mode: str) -> float | None:
    """Return the median step in milliseconds without plugin, agent and Fleet."""
    folder = machine.folder / f"{mode}-bare-{time.monotonic_ns()}"
    folder.mkdir()
    job = Job(machine, mode, folder, rings=None)
    try:
        job.wait_until_up()
        time.sleep(SETTLE_S)
        began_s = time.time()
        time.sleep(MEASURE_S)
        job.require_running()
        steps = [each.between(began_s, time.time()) for each in read_job(folder)]
    except JobEnded as error:
        print(error, flush=True)
        return None
    finally:
        job.close()
    medians = [float(np.median(each)) for each in steps if len(each)]
    return round(float(np.median(medians)), 3) if medians else None


def overhead_row(mode: str, without_ms: float | None, rows: list[Row]) -> dict[str, Any] | None:
    """Return the cost of plugin and agent: steps without them against the last calm phase."""
    calm = [row for row in rows if row["kind"] == CALM and row["steps"]]
    if without_ms is None or not calm:
        return None
    with_ms = calm[-1]["step_ms_median"]
    return {
        "job": mode,
        "phase": "overhead",
        "kind": "overhead",
        "without_ms": [without_ms],
        "with_ms": with_ms,
        "added": round(with_ms / without_ms - 1, 4),
        "agent_cpu": calm[-1].get("agent_cpu"),
    }
