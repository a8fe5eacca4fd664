"""`ingero agent` as a real process, asked over its health socket."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.processes import BIN
from tests.support.waiting import PATIENCE_S, until

from ingero.agent.service.health import AgentHealth, PartHealth, agent_health, ask_agent
from ingero.errors import Unavailable


@dataclass(frozen=True)
class WholeAgent:
    """A running agent; `said` is its log so far."""

    process: subprocess.Popen[bytes]
    socket: Path
    log: Path

    @property
    def said(self) -> str:
        return self.log.read_text()

    def health(self) -> AgentHealth | None:
        with contextlib.suppress(Unavailable):
            return agent_health(self.socket)
        return None

    def part(self, name: str) -> PartHealth:
        health = self.health()
        assert health is not None, self.said
        return next(part for part in health.parts if part.name == name)

    def metrics(self) -> str:
        return ask_agent(self.socket, "/metrics")[1].decode()

    def wait_until_healthy(self) -> AgentHealth:
        until(lambda: (found := self.health()) is not None and found.healthy, self.said)
        found = self.health()
        assert found is not None
        return found


@contextlib.contextmanager
def whole_agent(
    folder: Path, config: str | None, environment: dict[str, str] | None = None
) -> Iterator[WholeAgent]:
    """Run one until the end of the block; it must end with status 0 on SIGTERM.

    Without `config` the folder holds an ingero.yaml.
    """
    folder.mkdir(parents=True, exist_ok=True)
    file, log, socket = folder / "ingero.yaml", folder / "agent.log", folder / "run" / "agent.sock"
    if config is not None:
        file.write_text(config)
    env = dict(os.environ) | {"HOME": str(folder), "INGERO_RUNTIME_DIR": str(folder / "run")}
    with log.open("ab") as to:
        command = [str(BIN / "ingero"), "agent", "--config", str(file), "--socket", str(socket)]
        process = subprocess.Popen(command, stdout=to, stderr=to, env=env | (environment or {}))
    try:
        yield WholeAgent(process, socket, log)
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE_S) == 0, log.read_text()
    finally:
        process.kill()
        process.wait()
