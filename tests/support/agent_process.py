"""A real agent as a process of its own, with intervals shorter than the command line allows.

`python -m tests.support.agent_process` is what `agent` starts; all but the intervals is what
`ingero fleet-push` runs.
"""

import argparse
import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.support.waiting import PATIENCE_S

from ingero.agent.push.app import Agent, AgentOptions
from ingero.cli.show.logs import set_up_logging
from ingero.config.ingero import (
    HealthConfig,
    IngeroConfig,
    PersistenceConfig,
    RemediateConfig,
)
from ingero.config.ingero_fleet import FleetBlockConfig
from ingero.core.health.baseline import BaselinePolicy
from ingero.core.health.classifier import ClassifierPolicy

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class RunningAgent:
    """`said` is its log so far."""

    process: subprocess.Popen[bytes]
    log: Path

    @property
    def said(self) -> str:
        return self.log.read_text()

    def modes(self) -> list[str]:
        """The detection modes it went through, in order."""
        return [
            line.split(" mode=")[1].split()[0]
            for line in self.said.splitlines()
            if "mode_changed" in line
        ]


@contextlib.contextmanager
def agent(
    folder: Path, fleet: str, node: str, *flags: str, cluster: str = "demo"
) -> Iterator[RunningAgent]:
    """Run one until the end of the block, then stop it as a supervisor does."""
    command = [
        sys.executable, "-m", "tests.support.agent_process",
        "--fleet", fleet, "--cluster", cluster, "--node", node, *flags,
    ]  # fmt: skip
    log = folder / f"{cluster}-{node}.log"
    with log.open("ab") as to:
        process = subprocess.Popen(command, stdout=to, stderr=to, cwd=ROOT)
    try:
        yield RunningAgent(process, log)
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(PATIENCE_S)
        finally:
            process.kill()
            process.wait()


async def connect(socket: Path) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A consumer of an agent's socket, as soon as the agent listens."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            try:
                return await asyncio.open_unix_connection(socket)
            except OSError:  # not there yet, or there and not yet listening
                await asyncio.sleep(0.05)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--fleet", required=True)
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--node", required=True)
    parser.add_argument("--interval", type=float, default=0.5)
    parser.add_argument("--cached-max-age", type=float, default=300.0)
    parser.add_argument("--replay", type=Path)
    parser.add_argument("--socket", type=Path)
    parser.add_argument("--baseline", type=Path)
    parser.add_argument("--metrics", default=None)
    given = parser.parse_args()
    set_up_logging("info")
    config = IngeroConfig(
        fleet=FleetBlockConfig(
            endpoint=given.fleet,
            cluster_id=given.cluster,
            node_id=given.node,
            push_interval_s=given.interval,
            timeout_s=given.interval,
            cached_max_age_s=given.cached_max_age,
            world_size=8,
            node_rank=3,
        ),
        health=HealthConfig(
            baseline=BaselinePolicy(warmup_samples=3),
            classifier=ClassifierPolicy(confirmations=1),
            persistence=PersistenceConfig(path=given.baseline),
        ),
        remediate=RemediateConfig(enabled=given.socket is not None, socket=given.socket, gid=-1),
    )
    options = AgentOptions(
        stub=given.replay is None,
        replay=given.replay,
        metrics_listen=given.metrics,
        persist=given.baseline is not None,
    )
    asyncio.run(Agent(config, options).run())


if __name__ == "__main__":
    main()
