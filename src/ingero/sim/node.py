"""One simulated node: the real agent with simulated signals, slowed down by a control file.

With `--ranks` it also has ranks of a simulated training job, which a second file slows down.

`ingero demo` runs them all by `ingero.sim.nodes`, each in a process of its own.
"""

import argparse
import asyncio
import logging
import random
import time
from functools import partial
from pathlib import Path

import msgspec

from ingero.agent.push.app import Agent, AgentOptions
from ingero.agent.push.collective_feed import CollectiveFeed
from ingero.config.ingero import HealthConfig, IngeroConfig, SignalsConfig
from ingero.config.ingero_fleet import FleetBlockConfig
from ingero.core.health.baseline import BaselinePolicy
from ingero.core.health.observation import Observation
from ingero.files import replace_file
from ingero.sim.job import JobFeed, SimulatedJob, read_job
from ingero.sim.signals import HEALTHY_LAUNCHES, simulate_signals

GPU_MODEL = "NVIDIA H100 80GB HBM3"
JOB_SEED = 7  # the same on every node


class Control(msgspec.Struct, frozen=True):
    """The control file: go to `level` times the normal throughput over `over_s` seconds."""

    level: float = 1.0
    over_s: float = 0.0


class ControlledSource:
    """Signals of a healthy node, with the throughput that the control file sets."""

    def __init__(self, control: Path, seed: int) -> None:
        self.path = control
        self._chance = random.Random(seed)  # noqa: S311 - simulated noise, the same for the same seed
        self._written_ns = 0
        self._from = self._to = Control()
        self._since_s = time.monotonic()

    def read(self, now_ns: int) -> Observation:
        level = self._level()
        signals = simulate_signals({"throughput": level}, self._chance)
        launches = int(HEALTHY_LAUNCHES * level)
        return Observation(at_s=now_ns / 1e9, launches=launches, signals=signals)

    def close(self) -> None:
        pass

    def _level(self) -> float:
        written_ns = self.path.stat().st_mtime_ns if self.path.exists() else 0
        if written_ns != self._written_ns:
            self._from = Control(level=self._now())
            self._to = msgspec.json.decode(self.path.read_bytes(), type=Control)
            self._written_ns, self._since_s = written_ns, time.monotonic()
        return self._now()

    def _now(self) -> float:
        elapsed_s = time.monotonic() - self._since_s
        share = 1.0 if elapsed_s >= self._to.over_s else elapsed_s / self._to.over_s
        return self._from.level + (self._to.level - self._from.level) * share


def write_control(path: Path, level: float, over_s: float = 0.0) -> None:
    """Set the throughput of the node that reads `path`; the file is replaced atomically."""
    replace_file(path, msgspec.json.encode(Control(level, over_s)))


def run_node(given: list[str]) -> None:
    """Run one node until it is stopped."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--fleet", required=True)
    parser.add_argument("--cluster", required=True)
    parser.add_argument("--node", required=True)
    parser.add_argument("--control", required=True, type=Path)
    parser.add_argument("--push-interval", required=True, type=float)
    parser.add_argument("--warmup", required=True, type=int)
    parser.add_argument("--seed", default=1, type=int)
    parser.add_argument("--job-control", type=Path)
    parser.add_argument("--job-began", type=float, default=0.0)
    parser.add_argument("--ranks", type=int, default=0, help="on this node")
    parser.add_argument("--first-rank", type=int, default=0)
    parser.add_argument("--world", type=int, default=0, help="ranks of the whole job")
    arguments = parser.parse_args(given)
    logging.basicConfig(level=logging.WARNING)
    config = IngeroConfig(
        fleet=FleetBlockConfig(
            endpoint=f"http://{arguments.fleet}",
            cluster_id=arguments.cluster,
            node_id=arguments.node,
            workload_type="training",
            provider="lambda",  # one whose price of this GPU is known
            push_interval_s=arguments.push_interval,
            timeout_s=arguments.push_interval,
        ),
        health=HealthConfig(baseline=BaselinePolicy(warmup_samples=arguments.warmup)),
        signals=SignalsConfig(causes=False),  # there are no processes to look at
    )
    source = ControlledSource(arguments.control, arguments.seed)
    options = AgentOptions(
        persist=False, source=source, feeds=_feeds(arguments), gpu_model=GPU_MODEL
    )
    asyncio.run(Agent(config, options).run())


def _feeds(arguments: argparse.Namespace) -> list[CollectiveFeed]:
    if not arguments.ranks:
        return []
    job = SimulatedJob(
        arguments.world, arguments.job_began, JOB_SEED, partial(read_job, arguments.job_control)
    )
    ranks = range(arguments.first_rank, arguments.first_rank + arguments.ranks)
    return [JobFeed(job, arguments.node, ranks, arguments.world)]
