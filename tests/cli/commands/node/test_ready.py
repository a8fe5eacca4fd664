"""`ingero ready engine` as an exec probe: 0 ready, 1 not ready, 2 wrong usage."""

import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
from tests.support.engine_pages import TRITON
from tests.support.waiting import until

from ingero.cli.dispatch import run
from ingero.sim.inference.engine import Load
from ingero.sim.inference.replicas import EngineProcess


def test_the_exit_status_tells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """F166."""
    with EngineProcess(tmp_path) as engine:
        probe = ["ready", "engine", "--port", str(engine.port), "--within", "1s", "--json"]
        assert run(probe) == 0
        assert json.loads(capsys.readouterr().out) == {"ready": True, "why": "vllm is idle"}
        engine.set_load(Load(running=1, step_s=0.01))
        until(lambda: run(probe) == 0 and "makes steps" in capsys.readouterr().out)
        engine.hang()
        until(lambda: run(probe) == 1)
    assert run(probe[:-1]) == 1
    assert "not ready: nothing listens" in capsys.readouterr().out


class _Triton(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = TRITON.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


def test_an_engine_that_counts_no_steps_is_not_called_hung(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Three requests wait, and only executions that ended are counted."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Triton) as server:
        serving = Thread(target=server.serve_forever)
        serving.start()
        try:
            port = server.server_address[1]
            assert run(["ready", "engine", "--port", str(port), "--within", "1s"]) == 0
        finally:
            server.shutdown()
            serving.join()
    assert "triton answers; its metrics page does not count steps" in capsys.readouterr().out


def test_wrong_usage_is_2() -> None:
    assert run(["ready", "engine"]) == 2
    assert run(["ready", "engine", "--port", "0"]) == 2
