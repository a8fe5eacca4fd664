"""The cost of tracing: ns per probed call, agent CPU per event, loss, start-up and memory.

Run with `make bench-ebpf`. Figures hold for this machine and this run; an empty probe shows what
the kernel alone costs.
"""

import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ingero.agent.ebpf.attach import find_sites
from ingero.agent.ebpf.functions import FUNCTIONS
from ingero.agent.ebpf.layout import BUCKETS, FIRST_OCTAVE, MODE_ENTRY, cookie_of
from ingero.agent.ebpf.loaded import LoadedProbes
from ingero.agent.ebpf.loader.links import (
    ATTACH_UPROBE_MULTI,
    ATTACH_UPROBE_SESSION,
    Link,
    Probe,
    ProbeStyle,
    attach_multi,
)
from ingero.agent.ebpf.loader.program import EMPTY_PROGRAM, KPROBE, load_code
from ingero.agent.ebpf.policy import TracePolicy
from ingero.agent.ebpf.slots import Recording
from ingero.agent.ebpf.tracer import POLL_INTERVAL_S, Tracer
from ingero.agent.processes.discover import mapped_libraries

ROOT = Path(__file__).parents[1]
FAKES = ROOT / "tests" / "support" / "fake_gpu"
LAUNCH = next(
    number for number, function in enumerate(FUNCTIONS) if function.name == "cudaLaunchKernel"
)
ROUNDS, CALLS = 7, 20_000
DRIVER = """
import ctypes, sys, time
folder = sys.argv[1]
launch = ctypes.cast(ctypes.CDLL(folder + "/libcudart.so.12").cudaLaunchKernel, ctypes.c_void_p)
burst = ctypes.CDLL(folder + "/libburst.so").burst
burst.argtypes = [ctypes.c_void_p, ctypes.c_long, ctypes.c_double]
print("ready", flush=True)
for line in sys.stdin:
    kind, amount = line.split()
    calls, before, start = 0, time.thread_time_ns(), time.monotonic()
    if kind == "calls":
        burst(launch, int(amount), 0); calls = int(amount)
    else:
        while time.monotonic() - start < float(amount):
            burst(launch, 5000, 0); calls += 5000
    print(calls, time.thread_time_ns() - before, time.monotonic() - start, flush=True)
"""


def build(folder: Path) -> None:
    compiler = [
        sys.executable,
        "-m",
        "ziglang",
        "cc",
        "-O1",
        "-fno-omit-frame-pointer",
        "-shared",
        "-fPIC",
    ]
    for name, source, define in (
        ("libcudart.so.12", "fakegpu.c", "-DLIBRARY=1"),
        ("libburst.so", "burst.c", "-DX"),
    ):
        subprocess.run(
            [*compiler, define, "-o", str(folder / name), str(FAKES / source), "-lpthread"],
            check=True,
        )


class Driver:
    """A process that calls cudaLaunchKernel as fast as it can."""

    def __init__(self, folder: Path) -> None:
        command = [sys.executable, "-c", DRIVER, str(folder)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._line() == "ready"

    def _line(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def send(self, kind: str, amount: float) -> None:
        assert self.process.stdin
        self.process.stdin.write(f"{kind} {amount}\n")
        self.process.stdin.flush()

    def result(self) -> tuple[int, float, float]:
        calls, cpu_ns, wall_s = self._line().split()
        return int(calls), float(cpu_ns), float(wall_s)

    def ns_per_call(self) -> float:
        self.send("calls", CALLS)
        calls, cpu_ns, _ = self.result()
        return cpu_ns / calls

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


@contextmanager
def probed(link: Link | None) -> Iterator[None]:
    try:
        yield
    finally:
        if link is not None:
            link.close()


def probe_kinds(driver: Driver) -> dict[str, list[float]]:
    """Return the added CPU ns per call for each kind of probe, alternating with no probe."""
    pid = driver.process.pid
    library = mapped_libraries(pid)[0]
    (site,) = find_sites(library.file, library.library)[LAUNCH]
    probes = LoadedProbes(TracePolicy(layers=frozenset({"runtime"})))
    slot = probes.table.take(pid, Recording())
    assert slot is not None
    probe = Probe(site.offset, cookie_of(slot, LAUNCH))
    empty_multi = load_code("empty", KPROBE, EMPTY_PROGRAM, ATTACH_UPROBE_MULTI)
    empty_session = load_code("empty", KPROBE, EMPTY_PROGRAM, ATTACH_UPROBE_SESSION)
    row = probes.table.rows[slot]

    def ours(mode: int, recording: Recording) -> Link:
        row["mode"], row["slow_ns"], row["sample_every"] = (
            mode,
            recording.slow_ns,
            recording.sample_every,
        )
        return probes.calls.attach(library.file, [probe], [probe], pid)

    def empty(program: int, style: ProbeStyle) -> Link:
        return attach_multi(program, library.file, [probe], pid, style, on_return=False)

    kinds = {
        "empty entry probe": lambda: empty(empty_multi, ProbeStyle.MULTI),
        "entry only (counts)": lambda: ours(MODE_ENTRY, Recording()),
        "empty session": lambda: empty(empty_session, ProbeStyle.SESSION),
        "session, histogram": lambda: ours(0, Recording()),
        "session, ring record": lambda: ours(0, Recording.everything()),
    }
    added: dict[str, list[float]] = {name: [] for name in kinds}
    for _ in range(ROUNDS):
        for name, attach in kinds.items():
            base = driver.ns_per_call()
            with probed(attach()):
                added[name].append(driver.ns_per_call() - base)
            for ring in probes.rings:
                ring.drain()
    probes.table.give_back([slot])
    probes.close()
    return added


class DurationSketch:
    """Counts per operation and duration bucket: the least work an agent can do with each record."""

    def __init__(self) -> None:
        self.counts: NDArray[np.int64] = np.zeros(16 * 32 * BUCKETS, np.int64)

    def add(self, records: NDArray[np.void]) -> None:
        """Add durations; the bucket is the exponent and two bits of the mantissa of a float."""
        bits = (records["end_ns"] - records["start_ns"]).astype(np.float64).view(np.int64)
        buckets = np.clip((bits >> 50) - ((1023 + FIRST_OCTAVE) << 2), 0, BUCKETS - 1)
        keys = (records["source"].astype(np.int64) & 15) * 32 + (records["op"] & 31)
        np.add.at(self.counts, keys * BUCKETS + buckets, 1)


def agent(pid: int, seconds: float) -> None:
    """Run the agent of the drain test in its own process: from the ring to a sketch, no rows."""
    tracer = Tracer(
        TracePolicy(
            pids=(pid,), record_everything=True, layers=frozenset({"runtime"}), budget_share=None
        )
    )
    tracer.start()
    print("ready", flush=True)
    sketch, cpu, events = DurationSketch(), 0, 0
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        before = time.thread_time_ns()
        batch = tracer.poll()
        sketch.add(batch.records)
        if len(batch):
            cpu += time.thread_time_ns() - before
        events += len(batch)
        time.sleep(POLL_INTERVAL_S)
    calls = next(row.calls for row in tracer.histograms() if row.name == "cudaLaunchKernel")
    rss_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    answer = {
        "events": events,
        "calls": calls,
        "lost": tracer.losses()["calls"],
        "ns": cpu / max(events, 1),
    }
    print(
        json.dumps({**answer, "rss_mb": rss_mb, "sketched": int(sketch.counts.sum())}), flush=True
    )
    tracer.close()


def drain_test(driver: Driver, seconds: float) -> dict[str, float]:
    started = time.monotonic()
    command = [sys.executable, __file__, "--agent", str(driver.process.pid), str(seconds + 1)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout and process.stdout.readline().strip() == "ready"
    ready_ms = (time.monotonic() - started) * 1e3
    driver.send("seconds", seconds)
    calls, _, wall_s = driver.result()
    answer = json.loads(process.communicate()[0])
    return {**answer, "ready_ms": ready_ms, "made": calls, "rate": calls / wall_s}


def main() -> int:
    if sys.argv[1:2] == ["--agent"]:
        agent(int(sys.argv[2]), float(sys.argv[3]))
        return 0
    with tempfile.TemporaryDirectory() as work:
        build(Path(work))
        driver = Driver(Path(work))
        try:
            kinds = probe_kinds(driver)
            drains = [drain_test(driver, 2.0) for _ in range(3)]
        finally:
            driver.close()
    print(f"kernel {os.uname().release}, {os.cpu_count()} CPUs, load {os.getloadavg()[0]:.1f}\n")
    print(f"{'probe':24}{'ns per call, median':>20}{'min':>8}{'max':>8}")
    for name, values in kinds.items():
        print(f"{name:24}{statistics.median(values):>20.0f}{min(values):>8.0f}{max(values):>8.0f}")
    best = min(drains, key=lambda one: one["ns"])
    rate, ready = max(one["rate"] for one in drains), min(one["ready_ms"] for one in drains)
    lost = sum(int(one["lost"]) + int(one["made"] - one["events"]) for one in drains)
    rss = max(one["rss_mb"] for one in drains)
    rows = [
        (
            "agent CPU per event, ring to sketch",
            f"{best['ns']:.0f} ns",
            "100 ns",
            best["ns"] <= 100,
        ),
        ("events per second reached", f"{rate:,.0f}", "200,000", rate >= 200_000),
        ("lost", f"{lost} of {sum(int(one['made']) for one in drains):,}", "0", lost == 0),
        ("agent memory (peak RSS)", f"{rss:.0f} MB", "120 MB", rss < 120),
        ("process start to probes attached", f"{ready:.0f} ms", "500 ms", ready < 500),
    ]
    print(f"\n{'figure':36}{'measured':>20}{'required':>12}")
    for name, value, required, ok in rows:
        print(f"{name:36}{value:>20}{required:>12}  {'ok' if ok else 'MISSED'}")
    return 0 if all(row[3] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
