"""A serving node on this machine: Fleet, the real agent, and replicas of a simulated engine."""

import contextlib
import subprocess
import time
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Self

import msgspec

from ingero.children.process import last_line, module_command, start_child, stop_children
from ingero.contract.api_paths import FLEET_STATUS, PROMETHEUS
from ingero.contract.verdict import Verdict
from ingero.errors import Unavailable
from ingero.sim.cluster import CLUSTER, POLL_S, STOP_S, DemoCluster
from ingero.sim.inference.engine import Load
from ingero.sim.inference.replicas import EngineProcess

MODEL: Final = "simulated-8b"
NODE: Final = "this-node"
BUSY: Final = Load(running=8, waiting=2, step_s=0.02, kv_usage=0.4)


@dataclass
class ServingNode:
    """Starts everything, and stops it at the end of the `with` block."""

    replicas: int = 3
    model: str = MODEL
    engines: list[EngineProcess] = field(default_factory=list)
    fleet: DemoCluster = field(default_factory=lambda: DemoCluster([], quorum=3))
    _agent: subprocess.Popen[str] | None = None
    _opened: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)

    def __enter__(self) -> Self:
        try:
            self._opened.enter_context(self.fleet)
            for number in range(self.replicas):
                folder = self.fleet.folder / f"engine-{number}"
                folder.mkdir()
                engine = self._opened.enter_context(EngineProcess(folder, self.model))
                engine.set_load(BUSY)
                self.engines.append(engine)
            self._start_agent()
        except BaseException:
            self._opened.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._opened.close()

    def known_replicas(self) -> int:
        """Return how many replicas report to Fleet."""
        page = self._get("metrics", PROMETHEUS).decode()
        mine = [line for line in page.split("\n") if f'model="{self.model}"' in line]
        return sum(int(float(line.rsplit(" ", 1)[1])) for line in mine)

    def verdicts(self) -> list[Verdict]:
        """Return Fleet's verdicts about the replicas, open and resolved ones."""
        found = msgspec.json.decode(self._get("threshold", FLEET_STATUS))["clusters"]
        verdicts = [each for cluster in found for each in cluster["verdicts"]]
        decoded = msgspec.convert(verdicts, list[Verdict])
        return [each for each in decoded if each.job == self.model]

    def wait_for(self, condition: Callable[[], object], seconds: float) -> None:
        """Return once the condition holds; raise Unavailable after the timeout."""
        deadline = time.monotonic() + seconds
        while not condition():
            if self._agent is not None and self._agent.poll() is not None:
                raise Unavailable(f"the agent ended: {last_line(self._log, 'no log')}")
            if time.monotonic() > deadline:
                raise Unavailable(f"nothing within {seconds:g} s; last seen: {self.verdicts()}")
            time.sleep(POLL_S)

    @property
    def _log(self) -> Path:
        return self.fleet.folder / "agent.log"

    def _start_agent(self) -> None:
        options: Sequence[str] = (
            "--fleet-endpoint", f"http://{self.fleet.addresses['http']}",
            "--fleet-cluster-id", CLUSTER, "--fleet-node-id", NODE, "--collectives", "off",
            "--no-causes", "--fleet-persist-path", "",
        )  # fmt: skip
        self._agent = start_child(
            module_command("ingero", "fleet-push", *options), output=self._log, errors=self._log
        )
        self._opened.callback(stop_children, self._agent, timeout_s=STOP_S)

    def _get(self, listener: str, path: str) -> bytes:
        url = f"http://{self.fleet.addresses[listener]}{path}"
        try:
            with urllib.request.urlopen(url, timeout=5) as reply:
                return bytes(reply.read())
        except OSError as error:
            raise Unavailable(f"Fleet does not answer: {error}") from None
