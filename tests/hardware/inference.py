"""Three replicas of a random model on one GPU: the slow one is named, then a stopped one.

NOT RUN YET: it was written without a GPU at hand. It needs a CUDA GPU, torch and transformers 5,
and takes about four minutes: `python tests/hardware/inference.py`. It prints one line of JSON. The
cost of probes on decode steps (A-B-A) is not part of it.
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from contextlib import ExitStack, suppress
from pathlib import Path

from ingero.contract.verdict import CauseClass, Verdict, VerdictState
from ingero.sim.inference.cluster import ServingNode

PORTS = (18801, 18802, 18803)
MODEL = "random-1b"
START_S, NAMED_S, CALM_S = 180.0, 90.0, 20.0
ENGINE = Path(__file__).with_name("inference_engine.py")


def start(folder: Path, port: int, slow_s: float = 0.0) -> subprocess.Popen[bytes]:
    """Start a replica under the name by which a real vLLM is found."""
    script = folder / "vllm"
    if not script.exists():
        script.symlink_to(ENGINE)
    return subprocess.Popen(
        [sys.executable, str(script), "serve", MODEL, "--port", str(port), "--slow", str(slow_s)]
    )


def until(condition: Callable[[], object], seconds: float) -> float:
    """Return after how many seconds the condition held."""
    begin_s = time.monotonic()
    while not condition():
        if time.monotonic() - begin_s > seconds:
            raise SystemExit(f"nothing within {seconds:g} s")
        time.sleep(0.2)
    return round(time.monotonic() - begin_s, 1)


def answers(port: int) -> bool:
    """Whether a replica serves."""
    with suppress(OSError):
        urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1).close()
        return True
    return False


def named(node: ServingNode, port: int) -> Verdict | None:
    """Return the open verdict about a replica."""
    open_ones = [v for v in node.verdicts() if v.state is not VerdictState.RESOLVED]
    return next((v for v in open_ones if f"port {port}," in v.engine), None)


def main() -> None:
    """Run it and print what was measured."""
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory()))
        replicas = [start(folder, port) for port in PORTS]
        opened.callback(lambda: [each.kill() for each in replicas])
        for port in PORTS:
            until(lambda port=port: answers(port), START_S)  # type: ignore[misc]  # binds
        node = opened.enter_context(ServingNode(0, MODEL))
        until(lambda: node.known_replicas() == 3, 60.0)
        time.sleep(CALM_S)
        assert node.verdicts() == [], "nobody is slow yet"
        os.kill(replicas[1].pid, signal.SIGSTOP)
        stalled_s = until(lambda: named(node, PORTS[1]), NAMED_S)
        verdict = named(node, PORTS[1])
        assert verdict is not None and verdict.cause_class is CauseClass.HANG
        os.kill(replicas[1].pid, signal.SIGCONT)
        resolved_s = until(lambda: named(node, PORTS[1]) is None, NAMED_S)
        replicas[2].kill()
        replicas[2].wait()
        replicas[2] = start(folder, PORTS[2], slow_s=0.02)
        until(lambda: answers(PORTS[2]), START_S)
        slow_s = until(lambda: named(node, PORTS[2]), NAMED_S)
        others = [port for port in PORTS[:2] if named(node, port)]
        print(json.dumps({"stalled_s": stalled_s, "resolved_s": resolved_s, "slow_s": slow_s,
                          "wrongly_named": others, "waits": verdict.cause}))  # fmt: skip
        assert not others


if __name__ == "__main__":
    main()
