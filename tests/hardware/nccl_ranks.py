"""Eight real NCCL ranks on one GPU with the plugin: completeness, the slow rank, and the cost.

    python tests/hardware/prepare_nccl.py    # once, where pip works; carry wheelhouse/ along
    PYTHONPATH=src python3 tests/hardware/nccl_ranks.py healthy gpu host overhead

Needs python3, torch, numpy, an NVIDIA GPU with its MPS daemon, and wheelhouse/libnccl.so.2.xz.
Exits with status 1 when a check fails. Eight ranks on one GPU are timed differently from eight
GPUs: this shows the mechanism and our own overhead.
"""

import argparse
import json
import lzma
import os
import platform
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from ingero.agent.nccl.folders import ring_files
from ingero.agent.nccl.rings import Rings
from ingero.contract.nccl_ring import FLAG_CLOSED, FLAG_GPU_TIMED, FLAG_PARTIAL
from ingero.core.collectives.columns import Collectives, concat

ROOT = Path(__file__).parents[2]
PLUGIN = (
    ROOT / "src" / "ingero" / "agent" / "nccl" / platform.machine() / "libnccl-profiler-ingero.so"
)
WORLD = 8
SCENARIOS = {
    "healthy": {"steps": 150},
    "gpu": {"steps": 150, "rank": 3, "gpu": 0.05},
    "host": {"steps": 100, "rank": 5, "host_s": 0.02},
}
JOB_LIMIT_S = 120.0


class Machine:
    """NCCL 2.30 unpacked and the MPS daemon running, in one scratch folder."""

    def __init__(self, folder: Path, wheelhouse: Path) -> None:
        self.folder = folder
        self.rings = Path(tempfile.mkdtemp(prefix="ingero-hardware-", dir="/dev/shm"))
        self.library = folder / "libnccl.so.2"
        self.library.write_bytes(lzma.decompress((wheelhouse / "libnccl.so.2.xz").read_bytes()))
        mps = folder / "mps"
        mps.mkdir()
        self.environment = os.environ | {
            "CUDA_MPS_PIPE_DIRECTORY": str(mps),
            "CUDA_MPS_LOG_DIRECTORY": str(mps),
            "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE": str(100 // WORLD),
            "NCCL_MULTI_RANK_GPU_ENABLE": "1",
            # kernels that wait for each other must all fit on the GPU together
            "NCCL_MAX_NCHANNELS": "2",
            "NCCL_MAX_CTAS": "2",
            "OMP_NUM_THREADS": "1",
            "LD_PRELOAD": str(self.library),
            "INGERO_NCCL_RING_DIR": str(self.rings),
        }
        self.has_mps = shutil.which("nvidia-cuda-mps-control") is not None
        if self.has_mps:
            plain = {
                name: value for name, value in self.environment.items() if name != "LD_PRELOAD"
            }
            subprocess.run(["nvidia-cuda-mps-control", "-d"], env=plain, check=True)
        else:
            print("no MPS daemon: the ranks take turns, slowly")

    def close(self) -> None:
        if self.has_mps:
            plain = {
                name: value for name, value in self.environment.items() if name != "LD_PRELOAD"
            }
            subprocess.run(["nvidia-cuda-mps-control"], input=b"quit\n", env=plain, check=False)
        shutil.rmtree(self.rings, ignore_errors=True)


def start_ranks(
    machine: Machine, scenario: dict[str, float], out: Path, *, with_plugin: bool
) -> list[subprocess.Popen]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = machine.environment | {
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "WORLD_SIZE": str(WORLD),
    }
    if with_plugin:
        environment["NCCL_PROFILER_PLUGIN"] = str(PLUGIN)
    command = [
        sys.executable,
        str(Path(__file__).with_name("nccl_job.py")),
        json.dumps(scenario),
        str(out),
    ]
    ranks = []
    for rank in range(WORLD):
        own = environment | {"RANK": str(rank), "LOCAL_RANK": "0", "INGERO_JOB_ID": "hardware"}
        with (out / f"rank_{rank}.log").open("wb") as log:
            ranks.append(subprocess.Popen(command, env=own, stdout=log, stderr=log))
    return ranks


def run_job(
    machine: Machine, scenario: dict[str, float], name: str, *, with_plugin: bool
) -> tuple[list[dict], list, Rings]:
    """Run all ranks and read their rings meanwhile; return reports, batches and the reader."""
    out = machine.folder / f"{name}-{time.monotonic_ns()}"
    out.mkdir()
    rings = Rings((machine.rings,), node=platform.node())
    ranks = start_ranks(machine, scenario, out, with_plugin=with_plugin)
    batches, deadline = [], time.monotonic() + JOB_LIMIT_S
    try:
        while any(rank.poll() is None for rank in ranks):
            batches += rings.poll(time.monotonic())
            if time.monotonic() > deadline:
                raise SystemExit(
                    f"{name}: ranks still running after {JOB_LIMIT_S:.0f} s; see {out}"
                )
            time.sleep(0.05)
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    batches += rings.poll(time.monotonic() + 10)
    failed = [index for index, rank in enumerate(ranks) if rank.returncode]
    if failed:
        print((out / f"rank_{failed[0]}.log").read_text()[-3000:])
        raise SystemExit(f"{name}: ranks {failed} failed")
    return (
        [json.loads((out / f"rank_{rank}.json").read_text()) for rank in range(WORLD)],
        batches,
        rings,
    )


def own_time_ms(collectives: Collectives) -> dict[int, float]:
    """Return the median GPU time between collectives, per global rank."""
    own = {}
    for who, recorder in enumerate(collectives.recorders):
        rows = np.flatnonzero((collectives.who == who) & collectives.is_gpu_timed)
        order = rows[np.argsort(collectives.entry_ns[rows])]
        gaps = (collectives.entry_ns[order][1:] - collectives.end_ns[order][:-1]) / 1e6
        own[recorder.global_rank] = float(np.median(gaps[gaps > 0.05]))
    return own


def check_records(
    name: str, reports: list[dict], batches: list, rings: Rings, folder: Path
) -> list[str]:
    """Everything recorded, timed, read and cleaned up? Returns what is wrong."""
    problems = []
    for report in reports:
        records = np.concatenate(
            [batch.records for batch in batches if batch.header.pid == report["pid"]]
        )
        all_reduces = records[
            (records["op"] == b"AllReduce") & (records["count"] > 1)
        ]  # a barrier reduces one element
        if len(all_reduces) != report["all_reduces"]:
            problems.append(
                f"rank {report['rank']}: {len(all_reduces)} recorded, {report['all_reduces']} made"
            )
        untimed = int((records["flags"] & FLAG_GPU_TIMED == 0).sum())
        partial = int((records["flags"] & FLAG_PARTIAL != 0).sum())
        closed = int((records["flags"] & FLAG_CLOSED != 0).sum())
        # a job that ends leaves its last operations with a channel open: they are marked as closed,
        # and stay rare
        if partial:
            print(
                f"  rank {report['rank']}: {partial} partial, {closed} of them when their "
                f"communicator closed"
            )
        if untimed or partial > 0.01 * len(records):
            problems.append(
                f"rank {report['rank']}: {untimed} without GPU times, {partial} partial, "
                f"{closed} at close"
            )
    counts = rings.counts
    if counts.missed or counts.torn or counts.dropped or rings.refused:
        problems.append(
            f"missed {counts.missed}, torn {counts.torn}, dropped {counts.dropped}, {rings.refused}"
        )
    if left := [path for path in ring_files((folder,)) if path]:
        problems.append(f"{len(left)} rings left behind")
    comms = len({int(comm) for batch in batches for comm in batch.records["comm"]})
    steps_ms = [1e3 * statistics.median(report["steps_s"]) for report in reports]
    print(
        f"{name}: {counts.records} records of {WORLD} ranks, {comms} communicators, "
        f"step {min(steps_ms):.2f} to "
        f"{max(steps_ms):.2f} ms"
    )
    return problems


def check_scenario(machine: Machine, name: str) -> list[str]:
    scenario = SCENARIOS[name]
    reports, batches, rings = run_job(machine, scenario, name, with_plugin=True)
    problems = check_records(name, reports, batches, rings, machine.rings)
    own = own_time_ms(concat([batch.collectives for batch in batches if len(batch.records)]))
    print("  own GPU time ms", {rank: round(value, 3) for rank, value in sorted(own.items())})
    slowest = max(own, key=own.__getitem__)
    others = statistics.median(value for rank, value in own.items() if rank != slowest)
    excess = own[slowest] / others - 1
    print(f"  slowest rank {slowest}, {excess:+.1%} over the median of the others")
    if "rank" in scenario and slowest != scenario["rank"]:
        problems.append(f"rank {slowest} looks slowest, rank {scenario['rank']} was slowed")
    if "rank" not in scenario and excess > 0.03:
        problems.append(f"rank {slowest} stands out by {excess:.1%} though nothing was slowed")
    return [f"{name}: {problem}" for problem in problems]


def measure_overhead(machine: Machine, pairs: int) -> list[str]:
    """Median step with and without the plugin, alternated."""
    ratios = []
    for pair in range(pairs):
        median = {}
        for with_plugin in (pair % 2 == 0, pair % 2 == 1):
            reports, _, _ = run_job(machine, {"steps": 150}, "overhead", with_plugin=with_plugin)
            median[with_plugin] = statistics.median(
                step for report in reports for step in report["steps_s"]
            )
        ratios.append(median[True] / median[False] - 1)
        without_ms, with_ms = 1e3 * median[False], 1e3 * median[True]
        print(
            f"  pair {pair + 1}: {without_ms:.3f} ms without, {with_ms:.3f} ms with, "
            f"{ratios[-1]:+.2%}"
        )
    print(
        f"overhead: median {statistics.median(ratios):+.2%}, from {min(ratios):+.2%} to "
        f"{max(ratios):+.2%}"
    )
    return []


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "what", nargs="*", default=list(SCENARIOS), choices=[*SCENARIOS, "overhead"]
    )
    parser.add_argument("--wheelhouse", type=Path, default=ROOT / "wheelhouse")
    parser.add_argument(
        "--pairs", type=int, default=5, help="alternated pairs of runs for the overhead"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        machine = Machine(Path(folder), args.wheelhouse)
        try:
            problems = []
            for name in args.what:
                problems += (
                    measure_overhead(machine, args.pairs)
                    if name == "overhead"
                    else check_scenario(machine, name)
                )
        finally:
            machine.close()
    print("\n".join(problems) or "all checks passed")
    sys.exit(1 if problems else 0)


if __name__ == "__main__":
    main()
