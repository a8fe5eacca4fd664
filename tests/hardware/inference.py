"""Three replicas of a random model on one GPU: one is slowed, one is stopped; who is named?

    SCRIPT=inference bash tests/hardware/real_jobs/run.sh --out $OUT     # GPU machine, as root
    SCRIPT=inference WORKER_PYTHON=python-with-torch bash tests/hardware/real_jobs/run.sh --dry tiny

The replicas serve sixteen requests each, in steps that are CUDA graphs (`inference_worker.py`), and
share the GPU by MPS. Fleet and the agent of this node run beside them. First nobody is slow. Then
seven of ten steps of one replica work twice, and the worker of another one is stopped by a signal.
At last the cost of probes and agent on steps is measured: windows without and with them alternate.
Leaves inference.json in --out and prints it. Takes about 140 s.
"""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ingero.agent.ebpf.policy import TracePolicy
from ingero.agent.ebpf.tracer import POLL_INTERVAL_S, Tracer
from ingero.agent.engines.workers import worker_processes
from ingero.contract.verdict import Verdict, VerdictState
from ingero.errors import IngeroError
from ingero.sim.inference.cluster import ServingNode

MODEL = "random-1b"
ENGINE = Path(__file__).with_name("inference_engine.py")
START_S, KNOWN_S, NAMED_S, RESOLVED_S = 60.0, 40.0, 45.0, 60.0
STOP_S = 10.0
CALM_S, SLOW_SHARE = 15.0, 0.7
SETTLE_S, WINDOW_S, PAIRS = 0.7, 1.5, 8
SHARE = "33"  # percent of the GPU for each replica


class Replica:
    """One engine under the name by which a real vLLM is found, and the steps that it wrote."""

    def __init__(self, folder: Path, number: int, tiny: bool) -> None:
        script = folder / "vllm"
        if not script.exists():
            script.symlink_to(ENGINE)
        self.steps_file = folder / f"steps-{number}"
        command = [sys.executable, str(script), "serve", MODEL, "--steps", str(self.steps_file)]
        self.process = subprocess.Popen(
            [*command, *(["--tiny"] if tiny else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.port = self.worker = 0

    def wait_until_up(self) -> None:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()  # ends with the process, too
        if not line:
            raise SystemExit("a replica did not start; its message is above")
        said = json.loads(line)
        self.port, self.worker = said["port"], said["worker"]

    def slow(self, share: float) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{share}\n")
        self.process.stdin.flush()

    def decode_steps(self) -> np.ndarray:
        """Return end and seconds of the steps in which no prompt was read."""
        raw = self.steps_file.read_bytes()
        steps = np.frombuffer(raw[: len(raw) // 24 * 24], np.float64).reshape(-1, 3)
        return steps[steps[:, 2] == 0][:, :2]

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.worker or self.process.pid, signal.SIGCONT)
        assert self.process.stdin is not None
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            self.process.stdin.close()
            self.process.wait(STOP_S)
        for pid in (*worker_processes(self.process.pid), self.process.pid):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.process.wait()


@contextlib.contextmanager
def mps(folder: Path, tiny: bool) -> Iterator[None]:
    """Let the replicas share the GPU without taking turns."""
    if tiny:
        yield
        return
    os.environ |= {"CUDA_MPS_PIPE_DIRECTORY": str(folder), "CUDA_MPS_LOG_DIRECTORY": str(folder)}
    subprocess.run(["nvidia-cuda-mps-control", "-d"], check=True, timeout=20)
    os.environ["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = SHARE
    try:
        yield
    finally:
        subprocess.run(["nvidia-cuda-mps-control"], input=b"quit\n", check=False, timeout=20)


def seconds_until(condition: Callable[[], object], limit_s: float) -> float | None:
    """Return after how many seconds the condition held; None if it did not."""
    begin_s = time.monotonic()
    while time.monotonic() - begin_s < limit_s:
        with contextlib.suppress(IngeroError):  # Fleet may be busy
            if condition():
                return round(time.monotonic() - begin_s, 1)
        time.sleep(0.2)
    return None


def open_verdict(node: ServingNode, replica: Replica) -> Verdict | None:
    open_ones = [v for v in node.verdicts() if v.state is not VerdictState.RESOLVED]
    return next((v for v in open_ones if f"port {replica.port}," in v.engine), None)


def told(verdict: Verdict | None) -> dict[str, Any] | None:
    if verdict is None:
        return None
    said = ("engine", "evidence", "cause")
    found = {name: getattr(verdict, name) for name in said}
    return found | {"class": str(verdict.cause_class), "loss": verdict.loss}


def slowed(replicas: list[Replica], began_s: float, calm_s: float) -> list[float]:
    """Return the loss of each replica by its own steps, by means: some of its steps are longer."""
    losses = []
    for replica in replicas:
        ended, took = replica.decode_steps().T
        calm = took[(ended > calm_s) & (ended < began_s)]
        slow = took[ended > began_s + 1.0]
        is_known = len(calm) and len(slow)
        losses.append(round(1 - float(calm.mean() / slow.mean()), 4) if is_known else 0.0)
    return losses


def verdicts_of(node: ServingNode, replicas: list[Replica]) -> dict[str, Any]:
    """Slow one replica, then stop the worker of another; return when each was named and how."""
    found: dict[str, Any] = {}
    calm_s = time.monotonic()
    time.sleep(CALM_S)
    found["named_while_calm"] = [told(verdict) for verdict in node.verdicts()]
    fine, slow, hung = replicas
    began_s = time.monotonic()
    slow.slow(SLOW_SHARE)
    found["slow_named_s"] = seconds_until(lambda: open_verdict(node, slow), NAMED_S)
    found["slow"] = told(open_verdict(node, slow))
    found["lost_by_own_steps"] = slowed(replicas, began_s, calm_s)
    found["others_named"] = [r.port for r in (fine, hung) if open_verdict(node, r)]
    slow.slow(0.0)
    os.kill(hung.worker, signal.SIGSTOP)
    found["stalled_named_s"] = seconds_until(lambda: open_verdict(node, hung), NAMED_S)
    found["stalled"] = told(open_verdict(node, hung))
    found["others_named"] += [r.port for r in (fine,) if open_verdict(node, r)]
    os.kill(hung.worker, signal.SIGCONT)
    found["stalled_resolved_s"] = seconds_until(lambda: not open_verdict(node, hung), RESOLVED_S)
    found["slow_resolved_s"] = seconds_until(lambda: not open_verdict(node, slow), RESOLVED_S)
    return found


def overhead(node: ServingNode, replicas: list[Replica], until_s: float) -> dict[str, Any]:
    """Compare steps with probes and agent with the windows without them on both sides."""
    assert node._agent is not None
    agent = node._agent.pid
    windows: list[tuple[float, float]] = []
    policy = TracePolicy(pids=tuple(replica.worker for replica in replicas))
    for number in range(2 * PAIRS + 1):
        if time.monotonic() > until_s and number % 2:
            break
        tracer = Tracer(policy) if number % 2 else None
        os.kill(agent, signal.SIGCONT if tracer else signal.SIGSTOP)
        if tracer is not None:
            tracer.start()
        try:
            begin_s = time.monotonic() + SETTLE_S
            while time.monotonic() < begin_s + WINDOW_S:
                if tracer is not None:
                    tracer.poll()
                time.sleep(POLL_INTERVAL_S)
            windows.append((begin_s, time.monotonic()))
        finally:
            if tracer is not None:
                tracer.close()
    os.kill(agent, signal.SIGCONT)
    return compare(windows, [replica.decode_steps() for replica in replicas])


def compare(windows: list[tuple[float, float]], steps: list[np.ndarray]) -> dict[str, Any]:
    shares, usual_ms = [], []
    for each in steps:
        took = [each[(each[:, 0] > low) & (each[:, 0] < high), 1] for low, high in windows]
        median_ms = [1e3 * float(np.median(one)) if len(one) else np.nan for one in took]
        usual_ms.append(round(float(np.nanmedian(median_ms[::2])), 3))
        shares += [
            median_ms[at] / ((median_ms[at - 1] + median_ms[at + 1]) / 2) - 1
            for at in range(1, len(windows) - 1, 2)
        ]
    known = np.array([share for share in shares if np.isfinite(share)])
    if not len(known):
        return {"pairs": 0}
    drawn = np.random.default_rng(0).choice(known, (4000, len(known)))
    low, high = np.percentile(np.median(drawn, axis=1), [2.5, 97.5])
    added = {"median": float(np.median(known)), "low": float(low), "high": float(high)}
    figures = {name: round(value, 5) for name, value in added.items()}
    return {"pairs": len(known), "step_ms": usual_ms, "added": figures}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dry", choices=("tiny",), help="a tiny model on the CPU, without probes")
    parser.add_argument("--seconds-budget", type=float, default=175.0)
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "inference-out")))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    until_s = time.monotonic() + args.seconds_budget - 15
    found: dict[str, Any] = {}
    tiny = args.dry is not None

    def keep() -> None:
        (args.out / "inference.json").write_text(json.dumps(found, indent=1, ensure_ascii=False))

    with contextlib.ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        opened.enter_context(mps(folder, tiny))
        replicas = [Replica(folder, number, tiny) for number in range(3)]
        for replica in replicas:
            opened.callback(replica.close)
        began_s = time.monotonic()
        for replica in replicas:
            replica.wait_until_up()
        print(f"replicas serve after {time.monotonic() - began_s:.0f} s", flush=True)
        node = opened.enter_context(ServingNode(0, MODEL))
        found["known_s"] = seconds_until(lambda: node.known_replicas() == 3, KNOWN_S)
        found |= verdicts_of(node, replicas)
        keep()
        print(json.dumps(found, ensure_ascii=False), flush=True)
        if not tiny:
            found["overhead"] = overhead(node, replicas, until_s)
        keep()
    print(json.dumps(found.get("overhead")), flush=True)


if __name__ == "__main__":
    main()
