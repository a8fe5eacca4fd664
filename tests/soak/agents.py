"""Many simulated nodes in one process, each with the real agent; `python -m tests.soak.agents`."""

import argparse
import asyncio
import logging
import signal
from pathlib import Path

from ingero.agent.push.app import Agent, AgentOptions
from ingero.config.ingero import HealthConfig, IngeroConfig
from ingero.config.ingero_fleet import FleetBlockConfig
from ingero.core.health.baseline import BaselinePolicy
from ingero.sim.node import ControlledSource
from ingero.transport.file_limit import raise_file_limit

CLUSTER = "soak"
WARM_UP_SAMPLES = 5


def node_name(number: int) -> str:
    """Return the name of a simulated node."""
    return f"soak-{number:03d}"


def make_agent(number: int, fleet: str, folder: Path, interval_s: float) -> Agent:
    """Return the agent of a node that is slowed down by a control file in `folder`."""
    name = node_name(number)
    config = IngeroConfig(
        fleet=FleetBlockConfig(
            endpoint=f"http://{fleet}",
            cluster_id=CLUSTER,
            node_id=name,
            workload_type="training",
            push_interval_s=interval_s,
            timeout_s=interval_s,
        ),
        health=HealthConfig(baseline=BaselinePolicy(warmup_samples=WARM_UP_SAMPLES)),
    )
    source = ControlledSource(folder / f"{name}.control", seed=number)
    return Agent(config, AgentOptions(persist=False, source=source))


async def run(agents: list[Agent], interval_s: float) -> None:
    """Run all of them until SIGTERM, started evenly over one interval."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)

    async def start(number: int, agent: Agent) -> None:
        await asyncio.sleep(interval_s * number / len(agents))
        await agent.run(stop)

    await asyncio.gather(*(start(number, agent) for number, agent in enumerate(agents)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fleet", required=True)
    parser.add_argument("--first", type=int, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--interval", type=float, required=True)
    given = parser.parse_args()
    logging.basicConfig(level=logging.ERROR)
    raise_file_limit()
    numbers = range(given.first, given.first + given.count)
    agents = [make_agent(n, given.fleet, given.folder, given.interval) for n in numbers]
    asyncio.run(run(agents, given.interval))


if __name__ == "__main__":
    main()
