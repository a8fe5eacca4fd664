"""The part that pushes: health, collectives, causes and engines, and the remediation socket."""

import asyncio
import contextlib
import os
from collections.abc import Callable

from ingero.agent.host.sockets import own_socket
from ingero.agent.push.app import Agent, AgentOptions
from ingero.agent.push.metrics import agent_families
from ingero.agent.service.link import BEAT_S, Beat, PartLink
from ingero.agent.sight.asked import AskedSight
from ingero.agent.sight.messages import SOCKET_NAME
from ingero.agent.sight.own import OwnSight, Sight
from ingero.children.memory import return_freed_memory
from ingero.config.ingero import IngeroConfig
from ingero.contract.exposition import render


async def run_pusher(
    config: IngeroConfig,
    reread: Callable[[], IngeroConfig],
    link: PartLink,
    *,
    is_beside_recorder: bool,
) -> None:
    """Push until SIGTERM; SIGHUP reads the limits again."""
    sight = _sight(is_beside_recorder=is_beside_recorder)
    agent = Agent(config, AgentOptions(reread=reread, sight=sight))
    beating = asyncio.create_task(_beat(agent, sight, link))
    try:
        await agent.run()
    finally:
        beating.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await beating


def _sight(*, is_beside_recorder: bool) -> Sight:
    """Return how this part examines processes: it has no capabilities, but the recorder has."""
    if is_beside_recorder:
        return AskedSight(own_socket(SOCKET_NAME))
    problem = "causes and engines of other users are not seen: agent.record is false"
    return OwnSight(problem if os.geteuid() == 0 else "")


async def _beat(agent: Agent, sight: Sight, link: PartLink) -> None:
    return_freed_memory()
    while True:
        link.beat(Beat(notes=_notes(agent, sight), metrics=_metrics(agent)))
        await asyncio.sleep(BEAT_S)


def _notes(agent: Agent, sight: Sight) -> list[str]:
    feeds = agent.collectives.feeds if agent.collectives is not None else ()
    push = agent.loop.problem if agent.loop is not None else ""
    problems = [push, *(feed.problem for feed in feeds), sight.problem]
    return [problem for problem in problems if problem]


def _metrics(agent: Agent) -> str:
    if agent.loop is None:
        return ""
    families = agent_families(agent.loop, agent.socket, agent.collectives)
    return render(families + agent.other_families()).decode()
