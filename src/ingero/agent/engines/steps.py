"""The steps of engines as probes see them: launches of CUDA graphs, and waits for the GPU.

An engine that serves with graphs launches one per step and then waits for it. Where it uses none, a
step ends with a wait. This gives a heartbeat and a step time to engines whose page has neither.
"""

import logging
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ingero.core.inference.metric_table import Value
from ingero.core.inference.page import EnginePage
from ingero.errors import StoreError
from ingero.storage.trace.aggregates import SHORT_BUCKET_NS, ProcessSteps, TraceReader

MAX_PROCESSES: Final = 1024  # those that stepped least recently are forgotten first
SETTLED_NS: Final = 3 * SHORT_BUCKET_NS  # an older bucket does not grow any more
log = logging.getLogger(__name__)


@dataclass(slots=True)
class _Totals:
    launches: int = 0
    waits: int = 0
    wait_ns: int = 0

    def added(self, more: ProcessSteps) -> "_Totals":
        return _Totals(
            self.launches + more.launches, self.waits + more.waits, self.wait_ns + more.wait_ns
        )


class ProbedSteps:
    """Running totals per process, from the buckets of the trace database of this node."""

    def __init__(self, reader: TraceReader, now_ns: int) -> None:
        self._reader = reader
        self._from_ns = now_ns - now_ns % SHORT_BUCKET_NS
        self._settled: OrderedDict[int, _Totals] = OrderedDict()
        self._now: dict[int, _Totals] = {}
        self._problem = ""

    def update(self, now_ns: int) -> None:
        """Read what was recorded since the last call; a database that cannot be read is logged."""
        try:
            found = self._reader.steps(self._from_ns, now_ns)
        except StoreError as error:
            if not self._problem:
                log.info("no_probed_steps", extra={"why": str(error)})
            self._problem, self._now = str(error), {}
            return
        self._problem = ""
        settled_ns = (now_ns - SETTLED_NS) // SHORT_BUCKET_NS * SHORT_BUCKET_NS
        growing: dict[int, _Totals] = {}
        for one in found:
            if one.bucket_ns < settled_ns:
                self._settled[one.pid] = self._settled.get(one.pid, _Totals()).added(one)
                self._settled.move_to_end(one.pid)
            else:
                growing[one.pid] = growing.get(one.pid, _Totals()).added(one)
        self._from_ns = max(self._from_ns, settled_ns)
        while len(self._settled) > MAX_PROCESSES:
            self._settled.popitem(last=False)
        self._now = {
            pid: _sum(self._settled.get(pid, _Totals()), growing.get(pid, _Totals()))
            for pid in self._settled.keys() | growing.keys()
        }

    def complete(self, page: EnginePage, workers: Iterable[int]) -> None:
        """Add steps to the page of an engine that has none of its own, and only one rank.

        The workers of a tensor group make the same steps, so that the busiest stands for all.
        """
        if len(page.ranks) != 1:
            return
        (values,) = page.ranks.values()
        seen = [self._now[pid] for pid in workers if pid in self._now]
        if not seen:
            return
        busiest = max(seen, key=lambda one: (one.launches, one.waits))
        steps = busiest.launches or busiest.waits
        if Value.STEPS not in values:
            values[Value.STEPS] = float(steps)
        if Value.STEP_COUNT not in values:
            values[Value.STEP_COUNT] = float(steps)
            values[Value.STEP_SUM] = busiest.wait_ns / 1e9


def _sum(one: _Totals, other: _Totals) -> _Totals:
    return _Totals(
        one.launches + other.launches, one.waits + other.waits, one.wait_ns + other.wait_ns
    )
