"""`ingero fleet-push`: push the health of this node to Fleet."""

import asyncio
import sys
from pathlib import Path
from typing import Any

import click

from ingero.cli.settings import options_of
from ingero.config.ingero import IngeroConfig, load_ingero

_FILE = click.Path(path_type=Path)


@click.command()
@options_of(IngeroConfig)
@click.option("--stub", is_flag=True, help="Push constant signals, to try a Fleet without a GPU.")
@click.option(
    "--replay", type=_FILE, help="File of recorded signals, one JSON object per line and tick."
)
@click.option(
    "--metrics-listen",
    metavar="HOST:PORT",
    help="Address to serve the agent's own metrics at; not served if omitted.",
)
@click.option(
    "--ready-listen",
    metavar="HOST:PORT",
    help="Address to serve /ready/engine at, for readiness probes of inference engines; not "
    "served if omitted.",
)
@click.option(
    "--config",
    "config_path",
    type=_FILE,
    help="Configuration file; if omitted, the first ingero.yaml that is found.",
)
def command(
    config_path: Path | None, stub: bool, replay: Path | None,
    metrics_listen: str | None, ready_listen: str | None, **flags: Any,
) -> None:  # fmt: skip
    """Push this node's health to Fleet and learn from the reply whether the node is slow.

    Settings come from ingero.yaml; a flag given here wins. No TCP port is opened unless
    --metrics-listen or --ready-listen is given. The agent only observes: nothing in it can stop or
    move a job.

    The node is scored once per push interval. Its signals come from the trace database that
    `ingero trace` writes, from /proc and from the NVIDIA driver; the score is computed without a
    signal that is missing. --stub sends constant signals, --replay recorded ones: one JSON object
    per line with launches, throughput, compute, memory and cpu.

    The own time per step and a sample of the collectives of every rank on this node are sent once
    per second over a connection of their own, so that Fleet can name the rank that is late:
    docs/how-to/live-verdicts.md.

    Inference engines on this node (vLLM, SGLang, TensorRT-LLM, Triton, TGI) are found and their
    metrics pages are read every second, so that Fleet can name one that stalls or is slower than
    its replicas: docs/how-to/inference.md.

    SIGHUP reads the settings of `health` again, without forgetting baselines; started in a
    terminal, the agent stops on it.

    While Fleet cannot be reached, the agent uses the last threshold for five minutes and then the
    baseline of its own score.

    \b
    Examples:
      ingero fleet-push --fleet-endpoint https://fleet:4317 --fleet-cluster-id train-a
      ingero fleet-push --fleet-endpoint http://127.0.0.1:4318 --fleet-cluster-id try --stub
      ingero fleet-push --fleet-endpoint fleet:4318 --fleet-cluster-id train-a --remediate
    """
    if stub and replay is not None:
        raise click.UsageError("--stub and --replay exclude each other")
    asked = {"stub": stub, "replay": replay, "metrics_listen": metrics_listen}
    _run(config_path, flags, ready_listen=ready_listen, **asked)


def _run(config_path: Path | None, flags: dict[str, Any], **asked: Any) -> None:
    from ingero.agent.push.app import Agent, AgentOptions
    from ingero.cli.show.logs import set_up_logging

    persist = flags["fleet_persist_path"] != Path()  # an empty path switches persistence off
    if not persist:
        flags["fleet_persist_path"] = None
    config = load_ingero(config_path, flags)
    set_up_logging(config.agent.log_level)
    # a terminal that is closed sends SIGHUP, too, and then the agent stops
    in_terminal = sys.stdin is not None and sys.stdin.isatty()
    reread = None if in_terminal else lambda: load_ingero(config_path, flags)
    asyncio.run(Agent(config, AgentOptions(persist=persist, reread=reread, **asked)).run())
