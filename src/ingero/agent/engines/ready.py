"""Whether the engine on a port of this host is ready: one probe, without an agent or a memory."""

import time
from dataclasses import dataclass
from typing import Final

from ingero.agent.engines.ports import addresses_of_port
from ingero.agent.engines.scrape import HEALTH, get_page
from ingero.core.inference.heartbeat import counts_steps, requests_of, without_step
from ingero.core.inference.metric_table import PATHS
from ingero.core.inference.page import EnginePage, read_page

PAUSE_S: Final = 0.25


@dataclass(frozen=True, slots=True)
class Readiness:
    """The answer of a probe, with its reason."""

    is_ready: bool
    why: str


def probe_engine(port: int, within_s: float) -> Readiness:
    """Return whether an engine serves: idle, or with a step within some seconds."""
    deadline = time.monotonic() + within_s
    found = _find_page(port)
    if isinstance(found, str):
        return Readiness(False, found)
    address, path, first = found
    health = get_page(address, port, HEALTH)
    if health is not None and health.status >= 500:
        return Readiness(False, f"its health page says {health.status}")
    requests = sum(requests_of(values) for values in first.ranks.values())
    if not requests:
        return Readiness(True, f"{first.kind} is idle")
    if not any(counts_steps(values) for values in first.ranks.values()):
        return Readiness(True, f"{first.kind} answers; its metrics page does not count steps")
    while time.monotonic() < deadline:
        time.sleep(PAUSE_S)
        reply = get_page(address, port, path)
        page = read_page(reply.body) if reply is not None else None
        if page is not None and not without_step(first, page):
            return Readiness(True, f"{first.kind} makes steps")
    return Readiness(
        False, f"{requests:.0f} requests run or wait, and no step within {within_s:g} s"
    )


def _find_page(port: int) -> tuple[str, str, EnginePage] | str:
    """Return address, path and first page, or why there is none."""
    addresses = addresses_of_port(port)
    if not addresses:
        return f"nothing listens on port {port}"
    answered = False
    for address in addresses:
        for path in PATHS:
            reply = get_page(address, port, path)
            answered = answered or reply is not None
            page = read_page(reply.body) if reply is not None and reply.status == 200 else None
            if page is not None:
                return address, path, page
    if answered:
        return f"port {port} serves no metrics page of an inference engine"
    return f"port {port} does not answer"
