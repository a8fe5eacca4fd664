"""One engine on this node: its pages, its heartbeat, and the reports that follow from them."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Final

from ingero.agent.engines.ports import Listening
from ingero.contract.measurements.engines import EngineId, EngineKind, EngineReport
from ingero.core.inference.heartbeat import STALL_AFTER_S, Heartbeat
from ingero.core.inference.page import EnginePage, Values
from ingero.core.inference.samples import has_restarted, measure

LOOK_AGAIN_S: Final = 10.0  # between two looks at the workers of a stalled engine
SILENT_S: Final = 5.0  # without an answer, an engine is not ready


@dataclass(frozen=True, slots=True)
class EnginePlace:
    """Where an engine was found."""

    pid: int
    start_time: int
    at: Listening
    path: str
    kind: EngineKind
    gpus: int = 0
    user: int = -1


@dataclass(slots=True)
class Engine:
    """The state of one engine; `look` says where its workers wait, and what /health answers."""

    place: EnginePlace
    model: str
    look: Callable[[], tuple[str, int | None]]
    stall_after_s: float = STALL_AFTER_S
    answered_s: float = math.nan
    due_s: float = -math.inf  # when its page may be read again
    reports: dict[int | None, EngineReport] = field(default_factory=dict)
    _pages: dict[int | None, tuple[float, Values]] = field(default_factory=dict)
    _hearts: dict[int | None, Heartbeat] = field(default_factory=dict)
    _seen: tuple[float, str, int | None] = (-math.inf, "", None)

    def take(self, page: EnginePage | None, now_s: float) -> None:
        """Take the page of this round; None where the engine did not answer."""
        if page is None:
            self.reports = {
                rank: self._with_stall(EngineReport(is_up=False), heart, now_s)
                for rank, heart in self._hearts.items()
            }
            return
        self.answered_s, self.model = now_s, page.model or self.model
        self._forget_others(page)
        self.reports = {
            rank: self._take_rank(rank, values, now_s) for rank, values in page.ranks.items()
        }

    def is_ready(self, now_s: float) -> bool:
        """Whether it answers, and serves the requests that it has."""
        is_silent = not now_s - self.answered_s <= SILENT_S
        stalled = any(heart.stalled_for(now_s) is not None for heart in list(self._hearts.values()))
        return not is_silent and not stalled

    def ids(self) -> dict[int | None, EngineId]:
        """Return who reports, by data-parallel rank."""
        place = self.place
        whole = EngineId(
            kind=place.kind,
            model=self.model,
            port=place.at.port,
            pid=place.pid,
            gpus=place.gpus,
        )
        shared = place.gpus // max(len(self.reports), 1)
        return {
            rank: whole if rank is None else replace(whole, rank=rank, gpus=shared)
            for rank in self.reports
        }

    def _take_rank(self, rank: int | None, values: Values, now_s: float) -> EngineReport:
        before = self._pages.get(rank)
        self._pages[rank] = (now_s, values)
        heart = self._hearts.get(rank)
        if heart is None or (before is not None and has_restarted(before[1], values)):
            heart = self._hearts[rank] = Heartbeat(self.stall_after_s)
        heart.see(values, now_s)
        at_s, earlier = before if before is not None else (now_s, None)
        return self._with_stall(measure(earlier, values, now_s - at_s), heart, now_s)

    def _with_stall(self, report: EngineReport, heart: Heartbeat, now_s: float) -> EngineReport:
        stalled_s = heart.stalled_for(now_s)
        if stalled_s is None:
            return report
        if now_s - self._seen[0] >= LOOK_AGAIN_S:
            self._seen = (now_s, *self.look())
        return replace(report, stalled_s=stalled_s, waits=self._seen[1], health=self._seen[2])

    def _forget_others(self, page: EnginePage) -> None:
        for rank in [rank for rank in self._hearts if rank not in page.ranks]:
            del self._hearts[rank]
            self._pages.pop(rank, None)
