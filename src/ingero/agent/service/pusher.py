"""The part that pushes: health, collectives, causes and engines, and the remediation socket."""

import asyncio
import contextlib
from collections.abc import Callable

from ingero.agent.push.app import Agent, AgentOptions
from ingero.agent.push.metrics import agent_families
from ingero.agent.service.link import BEAT_S, Beat, PartLink
from ingero.children.memory import return_freed_memory
from ingero.config.ingero import IngeroConfig
from ingero.contract.exposition import render


async def run_pusher(
    config: IngeroConfig, reread: Callable[[], IngeroConfig], link: PartLink
) -> None:
    """Push until SIGTERM; SIGHUP reads the limits again."""
    agent = Agent(config, AgentOptions(reread=reread))
    beating = asyncio.create_task(_beat(agent, link))
    try:
        await agent.run()
    finally:
        beating.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await beating


async def _beat(agent: Agent, link: PartLink) -> None:
    return_freed_memory()
    while True:
        link.beat(Beat(notes=_notes(agent), metrics=_metrics(agent)))
        await asyncio.sleep(BEAT_S)


def _notes(agent: Agent) -> list[str]:
    feeds = agent.collectives.feeds if agent.collectives is not None else ()
    return [feed.problem for feed in feeds if feed.problem]


def _metrics(agent: Agent) -> str:
    if agent.loop is None:
        return ""
    families = agent_families(agent.loop, agent.socket, agent.collectives)
    return render(families + agent.other_families()).decode()
