"""The agent of a node: starts its parts, keeps them running, and answers for their health."""

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Final

from ingero.agent.host.identity import default_node
from ingero.agent.service.health import AgentHealth, HealthServer
from ingero.agent.service.part import Part, RunPart
from ingero.agent.service.plan import (
    API,
    PUSHER,
    RECORDER,
    Order,
    PlannedPart,
    agent_database,
    plan_parts,
)
from ingero.agent.service.renewal import renew_forever
from ingero.children.copies import share_memory
from ingero.children.memory import return_freed_memory, use_one_heap
from ingero.children.service_manager import (
    READY,
    RELOADING,
    STOPPING,
    feed_watchdog,
    tell_manager,
)
from ingero.config.ingero import IngeroConfig
from ingero.contract.exposition import by_label, gauge, render
from ingero.errors import IngeroError
from ingero.stopping import stop_on_signals

READY_WITHIN_S: Final = 60.0
log = logging.getLogger(__name__)


class AgentService:
    """All parts of one node's agent.

    `reread` reads the configuration again on SIGHUP; `run_part` runs a part.
    """

    def __init__(
        self,
        config: IngeroConfig,
        config_path: Path | None,
        reread: Callable[[], IngeroConfig],
        run_part: RunPart,
    ) -> None:
        self.config = config
        self._config_path, self._reread, self._run_part = config_path, reread, run_part
        self.parts: list[Part] = []
        self._running: dict[str, asyncio.Task[None]] = {}

    async def run(self, health_socket: Path, on_started: Callable[[AgentHealth], None]) -> None:
        """Run until SIGTERM or SIGINT; every part has ended afterwards."""
        stopping = stop_on_signals()
        asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, self.reload)
        use_one_heap()
        share_memory()
        server = HealthServer(health_socket, self.health, self.metrics)
        await server.start()
        try:
            self._start(self._planned(self.config))
            announcing = asyncio.create_task(self._announce(on_started))
            watchdog = asyncio.create_task(feed_watchdog())
            renewing = asyncio.create_task(renew_forever(lambda: self.config, self._restart_api))
            await stopping.wait()
            tell_manager(STOPPING)
            for task in (announcing, watchdog, renewing):
                task.cancel()
        finally:
            await self._stop(list(self._running))
            await server.close()
        log.info("agent_stopped")

    def _planned(self, config: IngeroConfig) -> list[Part]:
        plans = plan_parts(config)
        database = str(agent_database(config))
        path = None if self._config_path is None else str(self._config_path.absolute())
        is_recorded = any(plan.name == RECORDER and not plan.off for plan in plans)
        is_beside = is_recorded and os.geteuid() == 0
        return [
            Part(
                plan,
                Order(plan.name, path, database, is_beside and plan.name == PUSHER),
                self._run_part,
            )
            for plan in plans
        ]

    def _start(self, parts: list[Part]) -> None:
        for part in parts:
            self.parts = [each for each in self.parts if each.plan.name != part.plan.name]
            self.parts.append(part)
            self._running[part.plan.name] = asyncio.create_task(part.run(self._before(part)))
            if part.plan.off:
                log.info("part_off", extra={"part": part.plan.name, "why": part.plan.off})

    def _before(self, part: Part) -> asyncio.Event | None:
        """Return what a part waits for: the pusher needs the database that the recorder creates."""
        if part.plan.name != PUSHER:
            return None
        return next((each.settled for each in self.parts if each.plan.name == RECORDER), None)

    async def _stop(self, names: list[str]) -> None:
        tasks = [self._running.pop(name) for name in names if name in self._running]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _announce(self, on_started: Callable[[AgentHealth], None]) -> None:
        try:
            async with asyncio.timeout(READY_WITHIN_S):
                for part in self.parts:
                    await part.settled.wait()
        except TimeoutError:
            log.warning("parts_are_late", extra={"after_s": READY_WITHIN_S})
        return_freed_memory()
        tell_manager(READY, f"STATUS={self._status()}")
        on_started(self.health())

    def _status(self) -> str:
        return ", ".join(f"{part.plan.name} {part.state}" for part in self.parts)

    def reload(self) -> None:
        """Read the configuration again; parts whose settings changed start anew."""
        tell_manager(RELOADING)
        try:
            config = self._reread()
        except IngeroError as error:
            log.error("reload_failed", extra={"why": str(error)})
            tell_manager(READY)
            return
        before, self.config = self.config, config
        changed = [
            part
            for part in self._planned(config)
            if _settings_of(part.plan, before) != _settings_of(part.plan, config)
        ]
        names = {part.plan.name for part in changed}
        for part in self.parts:
            if part.plan.name not in names:
                part.reload()
        self._restarting = asyncio.create_task(self._restart(changed))
        log.info("reloaded", extra={"restarted": ", ".join(sorted(names)) or "none"})

    async def _restart(self, parts: list[Part]) -> None:
        await self._stop([part.plan.name for part in parts])
        self._start(parts)
        tell_manager(READY, f"STATUS={self._status()}")

    async def _restart_api(self) -> None:
        """Let the API use a new certificate."""
        await self._restart([part for part in self._planned(self.config) if part.plan.name == API])

    def health(self) -> AgentHealth:
        """Return the state of every part."""
        states = [part.state for part in self.parts]
        return AgentHealth(
            healthy=all(state in ("off", "running") for state in states),
            ready=all(part.settled.is_set() for part in self.parts),
            node=self.config.agent.node or default_node(),
            version=version("ingero"),
            pid=os.getpid(),
            database=str(agent_database(self.config)),
            parts=[part.health() for part in self.parts],
            addresses={
                name: address
                for part in self.parts
                for name, address in part.beat.addresses.items()
            },
        )

    def metrics(self) -> bytes:
        """Return the metrics of the agent and of every part."""
        own = render(
            [
                gauge(
                    "ingero_agent_part_up",
                    "1 for each part of the agent that runs; parts that are off are left out",
                    [
                        ((("part", part.plan.name),), float(part.state == "running"))
                        for part in self.parts
                        if part.state != "off"
                    ],
                ),
                by_label(
                    "ingero_agent_part_restarts_total",
                    "Times a part of the agent ended and was started again",
                    "part",
                    {part.plan.name: part.restarts for part in self.parts},
                ),
            ]
        )
        return own + "".join(part.beat.metrics for part in self.parts).encode()


def _settings_of(plan: PlannedPart, config: IngeroConfig) -> object:
    """Return the settings that a part reads only when it starts."""
    common = (plan.name, config.agent, config.store)
    if plan.name == PUSHER:
        return (*common, config.fleet, config.signals, config.remediate, config.otlp)
    return (*common, config.fleet.workload_type)
