"""A real vLLM on the CPU: an engine that hangs is named, an idle one never, a restart is found.

It starts three engines of 4 GB each, one after the other, and takes minutes; `make test-inference`
runs it.
"""

import json
import os
import signal
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

import pytest
from tests.support.peers import FOLDER

from ingero.agent.engines.ready import probe_engine
from ingero.agent.engines.scrape import get_page
from ingero.agent.engines.workers import worker_processes
from ingero.contract.verdict import CauseClass, Verdict, VerdictState
from ingero.sim.inference.cluster import ServingNode
from ingero.transport.listen import bind

PEER = FOLDER / "inference"
VARIABLE = "INGERO_TEST_VLLM"
START_S = 900.0
MODEL = "tiny"
ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "OMP_NUM_THREADS": "1",
}
pytestmark = [
    pytest.mark.timeout(3600),
    pytest.mark.skipif(
        not (PEER / "ready").exists(), reason="needs vLLM, which `make peers-inference` installs"
    ),
    pytest.mark.skipif(
        not os.environ.get(VARIABLE),
        reason=f"starts real engines for minutes; `make test-inference` sets {VARIABLE}",
    ),
]


class Vllm:
    """One real engine, and a client that keeps it busy."""

    def __init__(self, folder: Path) -> None:
        self.port = _free_port()
        with (folder / f"vllm-{self.port}.log").open("wb") as log:
            self.process = subprocess.Popen(
                ["nice", "-n", "5", PEER / "venv/bin/vllm", "serve", PEER / "tiny", "--port",
                 str(self.port), "--host", "127.0.0.1", "--load-format", "dummy",
                 "--enforce-eager", "--max-model-len", "1024", "--max-num-seqs", "16",
                 "--served-model-name", MODEL],
                env={**os.environ, **ENVIRONMENT}, stdout=log, stderr=log,
            )  # fmt: skip
        self._busy = threading.Event()
        self._ended = threading.Event()
        self._client = threading.Thread(target=self._ask, daemon=True)
        self._client.start()

    def health(self) -> int | None:
        reply = get_page("127.0.0.1", self.port, "/health")
        return None if reply is None else reply.status

    def set_busy(self, busy: bool) -> None:
        (self._busy.set if busy else self._busy.clear)()

    def worker(self) -> int:
        """Return the process that computes."""
        for pid in worker_processes(self.process.pid):
            if b"VLLM::Worker" in Path(f"/proc/{pid}/cmdline").read_bytes():
                return pid
        raise AssertionError("vLLM has no worker")

    def stop(self) -> None:
        self._ended.set()
        self._busy.set()
        self.process.terminate()
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            for pid in (*worker_processes(self.process.pid), self.process.pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self.process.wait(30)

    def _ask(self) -> None:
        body = json.dumps({"model": MODEL, "prompt": "w1 w2 w3", "max_tokens": 64}).encode()
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/v1/completions",
            body,
            {"Content-Type": "application/json"},
        )
        while not self._ended.is_set():
            self._busy.wait()
            try:
                urllib.request.urlopen(request, timeout=300).close()
            except OSError:
                time.sleep(0.5)


def _free_port() -> int:
    with bind("127.0.0.1:0") as listener:
        return int(listener.getsockname()[1])


@contextmanager
def engines(folder: Path, count: int) -> Iterator[list[Vllm]]:
    with ExitStack() as opened:
        found = []
        for _ in range(count):
            engine = Vllm(folder)
            opened.callback(engine.stop)
            _until(lambda engine=engine: engine.health() == 200, START_S)  # type: ignore[misc]  # binds
            found.append(engine)
        yield found


def _until(condition: Callable[[], object], seconds: float) -> float:
    begin_s = time.monotonic()
    while not condition():
        assert time.monotonic() - begin_s < seconds, f"nothing within {seconds:g} s"
        time.sleep(0.1)
    return time.monotonic() - begin_s


def _until_says(engine: Vllm, why: str) -> None:
    _until(lambda: probe_engine(engine.port, 2.0).why == why, 60.0)


def _about(node: ServingNode, engine: Vllm) -> Verdict | None:
    open_ones = [v for v in node.verdicts() if v.state is not VerdictState.RESOLVED]
    return next((v for v in open_ones if f"port {engine.port}," in v.engine), None)


def test_a_worker_that_is_stopped_stalls_its_replica(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """F159, F160, F165 and F166 on a real engine."""
    with engines(tmp_path, 2) as (first, second), ServingNode(0, MODEL) as node:
        found_s = _until(lambda: node.known_replicas() == 2, 60.0)
        for engine in (first, second):
            engine.set_busy(True)
            _until_says(engine, "vllm makes steps")
        worker = second.worker()
        os.kill(worker, signal.SIGSTOP)
        stalled_s = _until(lambda: _about(node, second), 30.0)
        verdict = _about(node, second)
        assert verdict is not None
        assert (verdict.state, verdict.cause_class) == (VerdictState.STRAGGLER, CauseClass.HANG)
        assert f"VLLM::Worker (pid {worker}) is stopped by a signal" in verdict.cause
        assert verdict.evidence.endswith("although /health says 200")
        assert second.health() == 200
        assert not probe_engine(second.port, 2.0).is_ready
        assert _about(node, first) is None
        os.kill(worker, signal.SIGCONT)
        resolved_s = _until(lambda: _about(node, second) is None, 30.0)
        for engine in (first, second):
            engine.set_busy(False)
        _until_says(second, "vllm is idle")
        worker_again = second.worker()
        os.kill(worker_again, signal.SIGSTOP)  # nothing waits for it, so that nobody is named
        for _ in range(20):
            assert all(v.state is VerdictState.RESOLVED for v in node.verdicts())
            time.sleep(0.5)
        os.kill(worker_again, signal.SIGCONT)
        second.stop()
        gone_s = _until(lambda: node.known_replicas() == 1, 60.0)
        with engines(tmp_path, 1) as (again,):
            assert again.port != second.port
            again_s = _until(lambda: node.known_replicas() == 2, 60.0)
        figures = {
            "found_s": found_s, "stalled_s": stalled_s, "resolved_s": resolved_s,
            "gone_s": gone_s, "found_again_s": again_s, "waits": verdict.cause,
        }  # fmt: skip
    with capsys.disabled():
        print(f"\n{json.dumps(figures)}")
    assert stalled_s < 10.0
