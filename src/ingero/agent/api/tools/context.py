"""What the tools of the agent work with, and the form of their answers."""

import asyncio
import contextlib
import logging
import sqlite3
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec

from ingero.contract.node_api import AGGREGATE_ABOVE_EVENTS
from ingero.contract.timestamps import rfc3339
from ingero.core.sanitise import LINE_BYTES, PREAMBLE, compact, count_canaries, traced
from ingero.core.units import parse_since_ns
from ingero.errors import ForeignFile
from ingero.storage.trace.node_view import READ_TIMEOUT_S
from ingero.storage.trace.query import covered_ns
from ingero.storage.trace.reading import reading
from ingero.transport.fanout.nodes import FanoutPolicy
from ingero.transport.tools.tool import ToolRefused

MAX_ANSWER_BYTES = 1 << 20
PAGERDUTY_URL = "https://events.pagerduty.com/v2/enqueue"
NO_TRACE = "there is no trace on this machine yet; `sudo ingero trace --record` records one"
log = logging.getLogger(__name__)

Since = Annotated[
    str,
    msgspec.Meta(description="how far back from now, such as 5m or 2h; empty is the whole trace"),
]
Pid = Annotated[int, msgspec.Meta(ge=0, description="one process; 0 is all of them")]
Compact = Annotated[bool, msgspec.Meta(description="short keys, which cost fewer tokens")]
Asked = TypeVar("Asked")


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentContext:
    """The trace of one node and the means to query others.

    `may_page` is true for authenticated callers.
    """

    db: Path
    nodes: tuple[str, ...] = ()
    policy: FanoutPolicy = field(default_factory=FanoutPolicy)
    play_scenario: Callable[[str], dict[str, Any]] | None = None
    report: Path = Path("logs/test-report.json")
    may_page: bool = True
    pagerduty_key: Callable[[], str | None] = lambda: None
    now_ns: Callable[[], int] = time.time_ns
    read_timeout_s: float = READ_TIMEOUT_S
    aggregate_above_events: int = AGGREGATE_ABOVE_EVENTS
    pagerduty_url: str = PAGERDUTY_URL

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """Open the trace for a bounded time.

        The message about a damaged file is marked as data, because it quotes the file.
        """
        try:
            with reading(self.db, self.read_timeout_s) as connection:
                yield connection
        except ForeignFile as error:
            raise ToolRefused(
                "store", f"the trace is not usable: {traced(str(error), LINE_BYTES)}", 503
            ) from None

    def since_ns(self, since: str) -> int:
        """Return the time `since` before now; 0 means everything."""
        if not since:
            return 0
        try:
            return parse_since_ns(since, self.now_ns())
        except ValueError as error:
            raise ToolRefused("bad_argument", f"since: {error}") from None


class ToolAnswer(msgspec.Struct):
    """An answer: `data` for programs; `text` only where the answer is prose or a table."""

    data: dict[str, Any] | None = None
    text: str | None = None


async def from_trace(
    context: AgentContext, question: Asked, answer: Callable[[AgentContext, Asked], ToolAnswer]
) -> ToolAnswer:
    """Answer in a thread; without a trace, return a hint how to record one."""
    if not context.db.exists():
        return ToolAnswer(text=NO_TRACE)
    return await asyncio.to_thread(answer, context, question)


def nothing_since(connection: sqlite3.Connection, since: str) -> ToolAnswer:
    """Explain why there are no events, and when there are some."""
    covered = covered_ns(connection)
    if covered is None:
        return ToolAnswer(
            text="the trace holds no events; `sudo ingero trace --record` records some"
        )
    first, last = map(rfc3339, covered)
    return ToolAnswer(
        text=f"no events in the last {since}: "
        f"the trace goes from {first} to {last}; leave `since` out"
    )


def make_answer(data: dict[str, Any], tsc: bool, *, has_traced: bool = False) -> ToolAnswer:
    """Return an answer with long or short keys. Raises ToolRefused when it is too large."""
    shown = compact(data) if tsc else data
    if has_traced:
        shown = {"note": PREAMBLE, **shown}
    encoded = msgspec.json.encode(shown)
    if len(encoded) > MAX_ANSWER_BYTES:
        raise ToolRefused(
            "too_large",
            "the answer is larger than 1 MiB; narrow it with since, pid or limit",
            status=413,
        )
    if has_traced:
        audit(encoded.decode())
    return ToolAnswer(data=shown)


def audit(answer: str) -> None:
    """Log where text of traced processes resembles instructions; the answer is not changed."""
    found = count_canaries(answer)
    if found:
        log.info("traced_text_reads_like_instructions", extra={"passages": found})


def to_text(answer: ToolAnswer) -> str:
    """Return the answer as text for an assistant."""
    return answer.text if answer.text is not None else msgspec.json.encode(answer.data).decode()
