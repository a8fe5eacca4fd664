"""A simulated inference engine: a server with a metrics page, and a worker process that steps.

Only the model is missing. The page has vLLM's names, is served over HTTP and counts what the worker
really did, so that a worker that is stopped stalls the engine as it stalls a real one. Lines of
JSON on standard input set the load.
"""

import argparse
import contextlib
import ctypes
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Iterable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Final

import msgspec

from ingero.children.lifetime import end_with_parent
from ingero.children.process import module_command, start_child
from ingero.contract.exposition import CONTENT_TYPE, Family, Labels, counter, gauge, render

_PR_SET_NAME: Final = 15


class Load(msgspec.Struct, frozen=True):
    """The load of an engine: its requests, how long a step takes, and how full its KV cache is."""

    running: int = 0
    waiting: int = 0
    step_s: float = 0.02
    kv_usage: float = 0.1
    preemptions_per_step: float = 0.0


class SimulatedEngine:
    """Counts the steps of its worker and renders the page."""

    def __init__(self, model: str) -> None:
        self.load = Load()
        self._model, self._lock = model, threading.Lock()
        self._steps, self._step_sum = 0, 0.0
        self._tokens = self._preemptions = 0.0

    def stepped(self, seconds: float) -> None:
        """Count one step of the worker."""
        with self._lock:
            self._steps += 1
            self._tokens += self.load.running
            self._step_sum += seconds * self.load.running
            self._preemptions += self.load.preemptions_per_step

    def page(self) -> bytes:
        """Return the metrics page."""
        labels: Labels = (("engine", "0"), ("model_name", self._model))
        with self._lock:
            load = self.load
            gauges = {
                "num_requests_running": load.running,
                "num_requests_waiting": load.waiting,
                "kv_cache_usage_perc": load.kv_usage,
            }
            counters = {
                "iteration_tokens_total_count": self._steps,
                "iteration_tokens_total_sum": self._tokens,
                "generation_tokens_total": self._tokens,
                "inter_token_latency_seconds_sum": self._step_sum,
                "inter_token_latency_seconds_count": self._tokens,
                "num_preemptions_total": self._preemptions,
            }
        families: list[Family] = [
            gauge(f"vllm:{name}", "Simulated", [(labels, value)]) for name, value in gauges.items()
        ]
        families += [
            counter(f"vllm:{name}", "Simulated", [(labels, value)])
            for name, value in counters.items()
        ]
        return render(families)


def _handler(engine: SimulatedEngine) -> type[BaseHTTPRequestHandler]:
    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = {"/metrics": engine.page(), "/health": b""}.get(self.path)
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, format: str, *args: Any) -> None:
            """Write no access log."""

    return Pages


def serve(model: str, port: int) -> None:
    """Serve until standard input ends; the first line of output names port and worker."""
    worker = start_child(module_command("ingero.sim.inference.engine", "work"), takes_input=True)
    assert worker.stdin is not None
    assert worker.stdout is not None
    engine = SimulatedEngine(model)
    server = ThreadingHTTPServer(("127.0.0.1", port), _handler(engine))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    threading.Thread(target=_count, args=(engine, worker.stdout), daemon=True).start()
    _write(json.dumps({"port": server.server_port, "worker": worker.pid}))
    for line in sys.stdin:
        load = msgspec.json.decode(line, type=Load)
        engine.load = load
        with contextlib.suppress(BrokenPipeError):
            worker.stdin.write(f"{load.step_s if load.running else 0}\n")
            worker.stdin.flush()
    worker.kill()
    worker.wait()


def _write(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def _count(engine: SimulatedEngine, steps: Iterable[str]) -> None:
    for line in steps:
        engine.stepped(float(line))


def work() -> None:
    """Step until the server ends; 0 on standard input means that there is nothing to do."""
    ctypes.CDLL(None).prctl(_PR_SET_NAME, b"VLLM::Worker", 0, 0, 0)
    end_with_parent(signal.SIGKILL)
    step_s = [0.0]
    has_load = threading.Event()

    def listen() -> None:
        for line in sys.stdin:
            step_s[0] = float(line)
            (has_load.set if step_s[0] else has_load.clear)()
        os._exit(0)

    threading.Thread(target=listen, daemon=True).start()
    while True:
        has_load.wait()
        begin_s = time.monotonic()
        time.sleep(step_s[0])
        _write(str(time.monotonic() - begin_s))


def main() -> None:
    """Run as `vllm serve MODEL --port N` would, or as the worker of such a server."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=("serve", "work"))
    parser.add_argument("model", nargs="?", default="simulated")
    parser.add_argument("--port", type=int, default=0)
    given = parser.parse_args()
    if given.what == "work":
        work()
    else:
        serve(given.model, given.port)


if __name__ == "__main__":
    main()
