"""Tracing on a real GPU: exact counts, cost and the governor; started by `tests/hardware/run.sh`.

Needs root, an NVIDIA GPU, PyTorch and numpy; nothing is installed. Writes `ebpf.json` into $OUT if
set, and exits with status 1 when a required figure is missed.
ONLY=overhead:gpt,counts:tiny,nccl runs only these parts.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

import numpy as np

from ingero.agent.ebpf.policy import TracePolicy
from ingero.agent.ebpf.tracer import POLL_INTERVAL_S, Tracer
from ingero.core.recording.governor import ProbeLevel

HERE = Path(__file__).parent
PAIRS = int(os.environ.get("PAIRS", "20"))
WINDOW_S = float(os.environ.get("WINDOW_S", "0.8"))
SETTLE_S = 10.0
# from attaching to the window: attaching and the first decision of the governor are over
STEADY_S = 0.6
ONLY = frozenset(filter(None, os.environ.get("ONLY", "").split(",")))
MODES = {
    "default": TracePolicy(),
    "everything": TracePolicy(record_everything=True, both_launch_layers=True, budget_share=None),
}
# without cudaLaunchKernelExC: cuBLAS calls it in its own, statically linked runtime, which has no
# symbol to probe. Those kernels are counted in the driver.
EXACT = ("cudaLaunchKernel", "cudaMemcpyAsync", "cudaStreamSynchronize", "cudaGraphLaunch")


class Workload:
    """A process with PyTorch on the GPU."""

    def __init__(self, kind: str) -> None:
        command = [sys.executable, str(HERE / "workload.py"), kind]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        line = self.line()
        if line != "ready":
            raise SystemExit(f"the {kind} workload did not start: {line!r}")

    def line(self) -> str:
        assert self.process.stdout
        return self.process.stdout.readline().strip()

    def send(self, text: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(text + "\n")
        self.process.stdin.flush()

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def policy_for(mode: str, pid: int) -> TracePolicy:
    base = MODES[mode]
    return TracePolicy(
        pids=(pid,),
        record_everything=base.record_everything,
        both_launch_layers=base.both_launch_layers,
        budget_share=base.budget_share,
    )


def poll_for(tracer: Tracer, seconds: float) -> int:
    events, end = 0, time.monotonic() + seconds
    while time.monotonic() < end:
        events += len(tracer.poll())
        time.sleep(POLL_INTERVAL_S)
    return events


def counts_of(tracer: Tracer, pid: int) -> dict[str, int]:
    return {row.name: row.calls for row in tracer.histograms() if row.pid == pid}


def exact_counts(kind: str, steps: int, own: dict[str, int]) -> dict[str, object]:
    """Compare the counts of `steps` steps with the PyTorch profiler and with the known numbers."""
    work = Workload(kind)
    tracer = Tracer(policy_for("everything", work.process.pid))
    tracer.start()
    try:
        work.send(f"count {steps}")
        assert work.line() == "begin"
        before = counts_of(tracer, work.process.pid)
        work.send("go")
        while True:
            poll_for(tracer, 0.02)
            if select_line(work):
                break
        after = counts_of(tracer, work.process.pid)
        work.send("stop")
        profiler = json.loads(work.line())
        tracer.poll()
        losses = tracer.losses()
    finally:
        tracer.close()
        work.close()
    ours = Counter({name: after[name] - before.get(name, 0) for name in after})
    rows = {
        name: (ours[name], profiler.get(name, 0))
        for name in EXACT
        if ours[name] or profiler.get(name)
    }
    if kind != "graphs":  # kernels inside a graph have no launch call of their own
        rows["kernels (driver launches)"] = (
            ours["cuLaunchKernel"] + ours["cuLaunchKernelEx"],
            profiler["kernels"],
        )
    for name, expected in own.items():
        rows[f"{name} (own count)"] = (ours[name], expected)
    wrong = [name for name, (mine, theirs) in rows.items() if mine != theirs]
    print(
        f"counts {kind:8}",
        "  ".join(f"{name} {mine}={theirs}" for name, (mine, theirs) in rows.items()),
        flush=True,
    )
    return {"rows": rows, "wrong": wrong, "lost": sum(losses.values())}


def select_line(work: Workload) -> bool:
    import select

    assert work.process.stdout
    ready, _, _ = select.select([work.process.stdout], [], [], 0)
    return bool(ready) and work.line() == "end"


def nccl_records() -> dict[str, object]:
    """Check id, rank, sequence numbers and bytes of 50 collectives of a one-rank communicator."""
    work = Workload("nccl")
    tracer = Tracer(policy_for("everything", work.process.pid))
    tracer.start()
    try:
        batches = []
        work.send("steps 50")
        end = time.monotonic() + 30
        while (
            time.monotonic() < end and sum(1 for batch in batches for _ in batch.collectives()) < 50
        ):
            batches.append(tracer.poll())
            time.sleep(POLL_INTERVAL_S)
        records = [record for batch in batches for record in batch.collectives()]
    finally:
        tracer.close()
        work.close()
    reduces = [
        record for record in records if record.op == "AllReduce" and record.size_bytes == 4096
    ]
    known = [
        record for record in reduces if record.comm and record.rank == 0 and record.nranks == 1
    ]
    sequence = [record.seq for record in reduces]
    ok = (
        len(reduces) == 50
        and sequence == list(range(sequence[0], sequence[0] + 50))
        and len(known) == 50
    )
    print(
        f"nccl: {len(reduces)} of 50 AllReduce, {len(known)} with id and rank, all records "
        f"{len(records)}",
        flush=True,
    )
    return {"reduces": len(reduces), "known": len(known), "ok": ok}


def overhead(kind: str) -> dict[str, object]:
    """Compare step times with the agent with the windows without it on both sides.

    There are at least 20 pairs per mode.
    """
    order = [mode for _ in range(PAIRS) for mode in ("off", "default", "off", "everything")] + [
        "off"
    ]
    # the toy only shows what the governor is for
    window_s = WINDOW_S / 2 if kind == "toy" else WINDOW_S
    work = Workload(kind)
    windows: list[tuple[str, int, int]] = []
    rates: dict[str, list[float]] = {"default": [], "everything": []}
    lost = 0
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "steps"
        work.send(f"run 3600 {path}")  # until it is killed after the last window
        time.sleep(0.5)
        for mode in order:
            tracer = None
            if mode != "off":
                tracer = Tracer(policy_for(mode, work.process.pid))
                tracer.start()
                poll_for(tracer, STEADY_S)
            begin = time.monotonic_ns()
            if tracer is None:
                time.sleep(window_s)
            else:
                before = sum(counts_of(tracer, work.process.pid).values())
                poll_for(tracer, window_s)
                rates[mode].append(
                    (sum(counts_of(tracer, work.process.pid).values()) - before) / window_s
                )
            windows.append((mode, begin, time.monotonic_ns()))
            if tracer is not None:
                lost += sum(tracer.losses().values())
                tracer.close()
        work.close()
        ends = np.fromfile(path, np.int64)
    return summarise(kind, windows, ends, rates, lost)


def summarise(
    kind: str,
    windows: list[tuple[str, int, int]],
    ends: np.ndarray,
    rates: dict[str, list[float]],
    lost: int,
) -> dict[str, object]:
    steps = np.diff(ends) / 1e6
    means = [
        float(np.median(steps[(ends[:-1] >= low) & (ends[1:] <= high)])) for _, low, high in windows
    ]
    off = [mean for (mode, _, _), mean in zip(windows, means, strict=True) if mode == "off"]
    result: dict[str, object] = {"step_ms": float(np.median(off)), "lost": lost}
    print(
        f"overhead {kind}: {np.median(off):.3f} ms a step without agent, {len(off)} windows",
        flush=True,
    )
    for mode in ("default", "everything"):
        shares = np.array(
            [
                means[i] / ((means[i - 1] + means[i + 1]) / 2) - 1
                for i, one in enumerate(windows)
                if one[0] == mode
            ]
        )
        random = np.random.default_rng(0)
        medians = np.median(random.choice(shares, (4000, len(shares))), axis=1)
        low, high = np.percentile(medians, [2.5, 97.5])
        result[mode] = {
            "median": float(np.median(shares)),
            "low": float(low),
            "high": float(high),
            "pairs": len(shares),
            "calls_per_s": float(np.median(rates[mode])),
        }
        print(
            f"  {mode:11} {np.median(shares):+8.2%} [{low:+.2%}, {high:+.2%}] {len(shares)} pairs, "
            f"{np.median(rates[mode]):,.0f} traced calls/s",
            flush=True,
        )
    control = [off[i] / ((off[i - 1] + off[i + 1]) / 2) - 1 for i in range(1, len(off) - 1)]
    result["control"] = float(np.median(control))
    print(f"  off/off     {np.median(control):+8.2%}", flush=True)
    return result


def governor(kind: str) -> dict[str, object]:
    """Measure how long a launch-bound loop takes until probing stays within its budget."""
    work = Workload(kind)
    with tempfile.TemporaryDirectory() as folder:
        work.send(f"run {SETTLE_S + 6:.0f} {folder}/steps")
        time.sleep(1.0)
        tracer = Tracer(policy_for("default", work.process.pid))
        tracer.start()
        start, inside = time.monotonic(), None
        shares = []
        while time.monotonic() - start < SETTLE_S + 3:
            poll_for(tracer, 0.1)
            for cost in tracer.costs():
                if cost.pid != work.process.pid:
                    continue
                shares.append(cost.charged_share)
                if cost.charged_share > cost.budget_share * 1.1:
                    inside = None
                elif inside is None:
                    inside = time.monotonic() - start
        (cost,) = [cost for cost in tracer.costs() if cost.pid == work.process.pid]
        watches = {
            name: watch.level.name
            for name, watch in cost.watches.items()
            if watch.level is not ProbeLevel.FULL
        }
        steps = [
            (round(step.at_s - start, 2), step.function, step.after.name) for step in tracer.steps()
        ]
        tracer.close()
        work.close()
    print(
        f"governor {kind}: inside its budget after "
        f"{inside if inside is None else round(inside, 1)} s, "
        f"now {cost.charged_share:.2%} of a core (waits {cost.waited_share:.0%}), {watches}",
        flush=True,
    )
    return {
        "settled_s": inside,
        "charged": cost.charged_share,
        "watches": watches,
        "steps": steps[:50],
    }


def parts(name: str, kinds: tuple[str, ...]) -> list[str]:
    """Kinds of one part that ONLY asks for; all of them without ONLY."""
    return [kind for kind in kinds if not ONLY or name in ONLY or f"{name}:{kind}" in ONLY]


def write_report(results: dict[str, object], path: Path) -> None:
    """Keep the figures where the MCP tool `get_test_report` reads them."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    finished = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    path.write_text(json.dumps({"finished": finished, **results}, indent=1))


def main() -> int:
    if os.geteuid():
        raise SystemExit("tracing needs root")
    started = time.monotonic()
    known = {"tiny": (20, {"cudaLaunchKernel": 4000}), "matmul": (20, {}), "gpt": (5, {})}
    known["graphs"] = (50, {"cudaGraphLaunch": 50})
    counts = {kind: exact_counts(kind, *known[kind]) for kind in parts("counts", tuple(known))}
    collectives = nccl_records() if not ONLY or "nccl" in ONLY else {}
    governed = {kind: governor(kind) for kind in parts("governor", ("tiny", "toy"))}
    table = {kind: overhead(kind) for kind in parts("overhead", ("matmul", "gpt", "toy"))}
    failures = [
        f"counts {kind}: {result['wrong']}" for kind, result in counts.items() if result["wrong"]
    ]
    failures += ["nccl records"] if collectives.get("ok") is False else []
    failures += [
        f"governor {kind} not settled in {SETTLE_S} s"
        for kind, result in governed.items()
        if result["settled_s"] is None or result["settled_s"] > SETTLE_S
    ]
    for kind in table.keys() & {"matmul", "gpt"}:
        high = table[kind]["default"]["high"]
        failures += [f"overhead {kind}: upper bound {high:.2%} is over 1 %"] if high > 0.01 else []
    if not (counts or collectives or governed or table):
        raise SystemExit(
            f"ONLY={os.environ['ONLY']} names no part: counts, nccl, governor, overhead[:kind]"
        )
    results = {
        "counts": counts,
        "nccl": collectives,
        "overhead": table,
        "governor": governed,
        "failures": failures,
    }
    if "OUT" in os.environ:
        (Path(os.environ["OUT"]) / "ebpf.json").write_text(json.dumps(results, indent=1))
    write_report(results, Path.home() / ".ingero" / "test-report.json")
    print(
        f"\n{time.monotonic() - started:.0f} s; "
        + ("all required figures reached" if not failures else "")
    )
    for failure in failures:
        print(f"MISSED: {failure}")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
