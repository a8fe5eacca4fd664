"""What the agent's tools work with, and the shape of their answers."""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from ingero.config.loader import parse_duration_s
from ingero.core.sanitise import PREAMBLE, compact, count_canaries
from ingero.storage.node_view import NodeView
from ingero.transport.nodes import FanoutPolicy
from ingero.transport.tools import ToolRefused

MAX_ANSWER_BYTES = 1 << 20
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentContext:
    """One node's data and the means to ask others. `may_page` is true for callers we know."""

    db: Path
    nodes: tuple[str, ...] = ()
    policy: FanoutPolicy = field(default_factory=FanoutPolicy)
    play_scenario: Callable[[str], dict[str, Any]] | None = None
    report: Path = Path("logs/test-report.json")
    may_page: bool = True
    now_ns: Callable[[], int] = time.time_ns

    @property
    def view(self) -> NodeView:
        return NodeView(self.db)

    def since_ns(self, since: str | None) -> int:
        """The moment a duration ago; 0 is everything."""
        if not since:
            return 0
        try:
            return max(0, self.now_ns() - int(parse_duration_s(since) * 1e9))
        except ValueError as error:
            raise ToolRefused("bad_argument", f"since: {error}") from None


class Told(msgspec.Struct):
    """An answer: `data` for programs; `text` only where the answer is prose or a table."""

    data: dict[str, Any] | None = None
    text: str | None = None


def told(data: dict[str, Any], tsc: bool, *, has_traced: bool = False) -> Told:
    """An answer in long or short keys, refused when it is too large to be useful."""
    shown = compact(data) if tsc else data
    if has_traced:
        shown = {"note": PREAMBLE, **shown}
    encoded = msgspec.json.encode(shown)
    if len(encoded) > MAX_ANSWER_BYTES:
        raise ToolRefused(
            "too_large", "the answer is larger than 1 MiB; narrow it with since, pid or limit", status=413
        )
    if has_traced:
        audit(encoded.decode())
    return Told(data=shown)


def audit(answer: str) -> None:
    """A line in the log where traced processes may be trying to talk to the assistant; the answer stays whole."""
    found = count_canaries(answer)
    if found:
        log.info("traced_text_reads_like_instructions", extra={"passages": found})


def to_text(answer: Told) -> str:
    """What an assistant reads."""
    return answer.text if answer.text is not None else msgspec.json.encode(answer.data).decode()


NO_TRACE = "there is no trace on this machine yet; `sudo ingero trace --record` records one"
