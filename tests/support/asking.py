"""Asking the agent's tools as the surfaces do, and trace databases to ask about."""

import sqlite3
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ingero.agent.api.tools.catalogue import AGENT_TOOLS
from ingero.agent.api.tools.context import AgentContext, ToolAnswer
from ingero.storage.trace.chains import CHAIN_COLUMNS
from ingero.storage.trace.schema import create_schema
from ingero.transport.tools.tool import by_name, call

START_NS = 10**18
CHAIN = f"INSERT INTO causal_chains ({', '.join(CHAIN_COLUMNS)}) VALUES "
EventRow = tuple[int, int, int, int, int]  # time, pid, source, op, duration


async def ask(context: AgentContext, name: str, **arguments: Any) -> ToolAnswer:
    answer = await call(by_name(AGENT_TOOLS, name), context, arguments)
    assert isinstance(answer, ToolAnswer)
    return answer


async def data_of(context: AgentContext, name: str, **arguments: Any) -> dict[str, Any]:
    """The answer in long keys."""
    answer = await ask(context, name, **{"tsc": False, **arguments})
    assert answer.data is not None, answer.text
    return answer.data


def trace(path: Path, events: Iterable[EventRow] = (), *statements: str) -> Path:
    """A trace database with these events, then changed."""
    connection = sqlite3.connect(path)
    create_schema(connection)
    connection.executemany(
        "INSERT INTO events (id, timestamp, pid, tid, source, op, duration) VALUES (?, ?, ?, 1, "
        "?, ?, ?)",
        [(f"{number}", *event) for number, event in enumerate(events)],
    )
    for statement in statements:
        connection.execute(statement)
    connection.commit()
    connection.close()
    return path


def calls(count: int, slow_every: int = 0, pid: int = 42) -> list[EventRow]:
    """Waits of a millisecond, 10 ms apart; every so many one takes fifty."""
    return [
        (
            START_NS + i * 10**7,
            pid,
            1,
            5,
            50 * 10**6 if slow_every and i % slow_every == slow_every - 1 else 10**6,
        )
        for i in range(count)
    ]
