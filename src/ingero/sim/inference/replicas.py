"""Simulated engines as processes of their own, under the name of a real one."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import msgspec

from ingero.children.process import start_child, stop_children, wait_for_line
from ingero.errors import Unavailable
from ingero.sim.inference.engine import Load

_SCRIPT = "from ingero.sim.inference.engine import main\n\nmain()\n"
STOP_S = 5.0


@dataclass
class EngineProcess:
    """One engine, started as `vllm serve MODEL`; it ends with the `with` block."""

    folder: Path
    model: str = "simulated"
    port: int = 0  # 0: chosen by the kernel
    worker: int = 0
    _process: subprocess.Popen[str] | None = field(default=None, repr=False)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pid(self) -> int:
        """The process with the port."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start the server and its worker."""
        script = self.folder / "vllm"  # what a real vLLM is started by, and found by
        script.write_text(_SCRIPT)
        command = [sys.executable, str(script), "serve", self.model, "--port", str(self.port)]
        self._process = start_child(command, takes_input=True)
        line = wait_for_line(self._process)
        if not line:
            raise Unavailable("a simulated engine did not start")
        said = json.loads(line)
        self.port, self.worker = said["port"], said["worker"]

    def stop(self) -> None:
        """End the engine; a stopped worker is ended too."""
        if self._process is None:
            return
        with contextlib.suppress(ProcessLookupError):
            self.resume()
        stop_children(self._process, timeout_s=STOP_S)
        self._process = None

    def set_load(self, load: Load) -> None:
        """Give the engine another load."""
        assert self._process is not None
        assert self._process.stdin is not None
        self._process.stdin.write(msgspec.json.encode(load).decode() + "\n")
        self._process.stdin.flush()

    def hang(self) -> None:
        """Stop the worker, as a hanging kernel would; the server goes on answering."""
        os.kill(self.worker, signal.SIGSTOP)

    def resume(self) -> None:
        """Let the worker go on."""
        os.kill(self.worker, signal.SIGCONT)
