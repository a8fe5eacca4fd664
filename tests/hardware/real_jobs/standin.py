"""Stands in for `job.py` where there is no GPU: simulated ranks that call the real plugin.

    python -m tests.hardware.real_jobs.standin CONTROL OUT MODE

Takes the same control file and writes the same step times. A step is some work of the host, a sleep
for the GPU and a barrier; what slows a host is real.
"""

import json
import multiprocessing
import os
import random
import sys
import time
import zlib
from pathlib import Path
from typing import Any

from tests.hardware.real_jobs.host_faults import SlowHost
from tests.support.live_job import BUCKETS, Alarm, Communicator

OWN_NS = 40_000_000
LAUNCH_NS = 1_000_000  # of CPU time: little, because all ranks may share two cores
WORLD = 8
LOOK_NS = 250_000_000
LINE_STEPS = 20


def run_rank(rank: int, control: Path, out: Path, barrier: Any, end: Any) -> None:
    plugin = os.environ.get("NCCL_PROFILER_PLUGIN")
    job = zlib.crc32(os.environ.get("INGERO_JOB_ID", "").encode())  # communicators are never shared
    comm = Communicator(plugin, job, rank, WORLD) if plugin else None
    alarm, host, base = Alarm(), SlowHost(out, rank), random.Random(rank).randrange(10**15)
    says, looked_ns, times_ms, step = {}, 0, [], 0
    log = (out / f"steps_{rank}.jsonl").open("w", buffering=1)
    barrier.wait(60)
    free_ns = time.monotonic_ns()
    while not end.value:
        began_ns = free_ns
        if free_ns - looked_ns > LOOK_NS:
            looked_ns, seen = free_ns, json.loads(control.read_text())
            if seen != says:
                says = seen
                log.write(json.dumps({"at": time.time(), "step": step, "fault": says}) + "\n")
        mine = says.get("rank") == rank and step % says.get("every", 1) == 0
        if mine:
            host.hold_up(says, OWN_NS / 1e9)
        launch()
        launched_ns = time.monotonic_ns()
        operations = [comm.enqueue(bucket // 2) for bucket in BUCKETS] if comm else []
        extra = says.get("gpu", 0.0) * OWN_NS if mine else 0
        alarm.wait_for(launched_ns + OWN_NS - LAUNCH_NS + int(extra))
        arrived_ns = time.monotonic_ns()
        if rank == 0 and says.get("stop"):
            end.value = 1
        barrier.wait(60)
        free_ns = time.monotonic_ns()
        for number, operation in enumerate(operations):
            start = arrived_ns if number == 0 else free_ns + number * 1000
            assert comm is not None
            comm.ran(operation, base + start, base + free_ns + (number + 1) * 1000)
        times_ms.append(round((free_ns - began_ns) / 1e6, 3))
        step += 1
        if step % LINE_STEPS == 0:
            line = {"at": time.time(), "first": step - LINE_STEPS, "ms": times_ms}
            log.write(json.dumps(line) + "\n")
            times_ms = []


def launch() -> None:
    end_ns = time.thread_time_ns() + LAUNCH_NS
    while time.thread_time_ns() < end_ns:
        pass


def main() -> None:
    control, out = Path(sys.argv[1]), Path(sys.argv[2])
    context = multiprocessing.get_context("spawn")  # so that /proc shows the variables of each rank
    barrier, end = context.Barrier(WORLD), context.Value("b", 0)
    ranks = []
    for rank in range(WORLD):
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(WORLD), "LOCAL_RANK": str(rank)}
        ranks.append(context.Process(target=run_rank, args=(rank, control, out, barrier, end)))
        ranks[-1].start()
    for process in ranks:
        process.join()


if __name__ == "__main__":
    main()
