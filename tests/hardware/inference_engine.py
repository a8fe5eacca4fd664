"""A small real engine for a GPU machine without network: vLLM's page in front of a random model.

Started as `python …/vllm serve random-1b --port N`, so that agents find it as they find vLLM. The
server answers pages and starts the worker, which alone uses the GPU; it goes on answering while
the worker hangs, as the servers of engines do. The first line of output names port and worker;
lines on standard input go to the worker.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
from http.server import ThreadingHTTPServer
from pathlib import Path

from ingero.sim.inference.engine import Load, SimulatedEngine, _handler

WORKER = Path(__file__).resolve().with_name("inference_worker.py")
STOP_S = 8.0
LOAD = Load(running=16, waiting=2, kv_usage=0.4)


def main() -> None:
    """Serve until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("what", choices=["serve"])
    parser.add_argument("model")
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--steps", type=Path, required=True)
    parser.add_argument("--tiny", action="store_true")
    given = parser.parse_args()
    python = os.environ.get("WORKER_PYTHON", sys.executable)
    command = [python, str(WORKER), str(given.steps), *(["--tiny"] if given.tiny else [])]
    # the worker gets the machine's own packages, not those that were carried
    own = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    worker = subprocess.Popen(
        command,
        env=own,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert worker.stdin is not None
    assert worker.stdout is not None
    first = worker.stdout.readline()
    if not first:
        sys.exit("the worker did not start")
    engine = SimulatedEngine(given.model)
    engine.load = LOAD
    server = ThreadingHTTPServer(("127.0.0.1", given.port), _handler(engine))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    threading.Thread(target=_count, args=(engine, worker.stdout), daemon=True).start()
    print(json.dumps({"port": server.server_port, "worker": worker.pid}), flush=True)
    for line in sys.stdin:
        worker.stdin.write(line)
        worker.stdin.flush()
    worker.stdin.close()
    try:
        worker.wait(STOP_S)
    except subprocess.TimeoutExpired:
        worker.kill()


def _count(engine: SimulatedEngine, steps) -> None:
    for line in steps:
        engine.stepped(float(line))


if __name__ == "__main__":
    main()
