"""The nodes of a cluster and the last report of each, in numpy columns with one writer.

Times are seconds of the receiver's monotonic clock: a node's own clock never decides whether the
node is alive.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import msgspec
import numpy as np

from ingero.compiled import FAST_PATH, compiled_or_pure
from ingero.contract.push.decode import STATES, NodeReport
from ingero.contract.types import NodeState
from ingero.core.robust import Column

# None without compiled parts: then every push takes the long way.
RosterWriter: Any = compiled_or_pure(FAST_PATH, "RosterWriter", None)
FORGET_AFTER_TTLS = 12  # for this long a node that stopped pushing is still listed, as silent
# A push that is older than the last one by less than this is a late retry; otherwise the sender's
# clock was set back
REORDER_NS = 5 * 10**9
ACTIVE = STATES.index(NodeState.ACTIVE.value)
_FIRST_CAPACITY = 64
_COLUMNS: tuple[tuple[str, Any, float], ...] = (
    ("score", np.float64, np.nan),
    ("seen_s", np.float64, -np.inf),
    ("first_s", np.float64, np.inf),
    ("straggling_s", np.float64, np.nan),
    ("state", np.int8, -1),
    ("sent_ns", np.uint64, 0),
    ("pushes", np.int64, 0),
)
_STATE_CODES = {state: code for code, state in enumerate(STATES)}


class Put(IntEnum):
    """The outcome of storing a report; an index into counters."""

    STORED = 0
    DUPLICATE = 1  # a retry of the same push: the node is alive, nothing else changes
    LATE = 2  # overtaken by a newer push
    FULL = 3


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node for display; times are ages in seconds."""

    node: str
    score: float | None
    state: str
    age_s: float
    known_for_s: float
    pushes: int
    straggling: bool
    straggling_for_s: float | None
    sent_ns: int
    report: NodeReport


class StoredRoster(msgspec.Struct, frozen=True):
    """A roster as a snapshot keeps it: every row in its place, columns as bytes."""

    reports: list[NodeReport | None]
    free: list[int]
    columns: dict[str, bytes]


class Roster:
    """The nodes of one cluster."""

    def __init__(self, max_nodes: int) -> None:
        self.max_nodes = max_nodes
        self.rows: dict[str, int] = {}
        self.reports: list[NodeReport | None] = []
        self._free: list[int] = []
        self._grow(_FIRST_CAPACITY)

    def _grow(self, capacity: int) -> None:
        old = len(self.reports)
        self.reports += [None] * (capacity - old)
        self._free += range(capacity - 1, old - 1, -1)
        for name, kind, empty in _COLUMNS:
            column = np.full(capacity, empty, dtype=kind)
            if old:
                column[:old] = getattr(self, name)
            setattr(self, name, column)
        self.writer = self._make_writer()

    def _make_writer(self) -> Any:
        """Return the writer of the compiled fast path; new columns need a new one."""
        if RosterWriter is None:
            return None
        columns = (self.score, self.seen_s, self.state, self.sent_ns, self.pushes)
        return RosterWriter(self.rows, self.reports, *columns, REORDER_NS)

    score: Column
    seen_s: Column
    first_s: Column
    straggling_s: Column
    state: np.ndarray[tuple[int], np.dtype[np.int8]]
    sent_ns: np.ndarray[tuple[int], np.dtype[np.uint64]]
    pushes: np.ndarray[tuple[int], np.dtype[np.int64]]

    def stored(self) -> StoredRoster:
        """Return everything that another replica needs to have the same rows."""
        columns = {name: getattr(self, name).tobytes() for name, _, _ in _COLUMNS}
        return StoredRoster(list(self.reports), list(self._free), columns)

    @classmethod
    def restored(cls, stored: StoredRoster, max_nodes: int) -> "Roster":
        """Return the roster that was stored; raise ValueError or KeyError where it is damaged."""
        roster, size = cls(max_nodes), len(stored.reports)
        roster.reports = list(stored.reports)
        roster.rows = {each.node: row for row, each in enumerate(stored.reports) if each}
        roster._free = list(stored.free)
        taken = {*roster.rows.values(), *roster._free}
        if len(roster.rows) + len(roster._free) != size or taken != set(range(size)):
            raise ValueError("rows of nodes are missing")
        for name, kind, _ in _COLUMNS:
            column = np.frombuffer(stored.columns[name], kind).copy()
            if len(column) != size:
                raise ValueError(f"{len(column)} values of {name} for {size} rows")
            setattr(roster, name, column)
        roster.writer = roster._make_writer()
        return roster

    def put(self, report: NodeReport, now_s: float) -> Put:
        """Store one report; one without a score keeps a known node alive, with its last score."""
        row = self.rows.get(report.node)
        if row is None:
            row = self._admit(report, now_s)
            if row is None:
                return Put.FULL
        self.seen_s[row] = now_s
        self.pushes[row] += 1
        if report.straggling is not None:
            self._follow_event(row, report.straggling, now_s)
        if report.score is None:
            return Put.STORED
        last_ns = int(self.sent_ns[row])
        if report.sent_ns <= last_ns and report.sent_ns:
            if report.sent_ns == last_ns:
                return Put.DUPLICATE
            if last_ns - report.sent_ns < REORDER_NS:
                return Put.LATE
        self.sent_ns[row] = report.sent_ns
        self.score[row] = report.score
        self.state[row] = _STATE_CODES[report.state]
        self.reports[row] = report
        return Put.STORED

    def touch(self, row: int, pushes: int, now_s: float) -> None:
        """Do what `put` does with reports of one known node that have no score and no event."""
        self.seen_s[row] = now_s
        self.pushes[row] += pushes

    def _admit(self, report: NodeReport, now_s: float) -> int | None:
        if len(self.rows) >= self.max_nodes:
            return None
        if not self._free:
            self._grow(2 * len(self.reports))
        row = self._free.pop()
        self.rows[report.node] = row
        self.reports[row] = report
        self.first_s[row] = now_s
        return row

    def _follow_event(self, row: int, straggling: bool, now_s: float) -> None:
        if not straggling:
            self.straggling_s[row] = np.nan
        elif np.isnan(self.straggling_s[row]):
            self.straggling_s[row] = now_s

    def active_scores(self, now_s: float, ttl_s: float) -> Column:
        """Return the scores of the nodes that are active and pushed within `ttl_s`."""
        scores: Column = self.score[(self.state == ACTIVE) & (self.seen_s >= now_s - ttl_s)]
        return scores

    def counts(self, now_s: float, ttl_s: float) -> dict[str, int]:
        """Count live nodes by state, and as `silent` the listed nodes that stopped pushing."""
        live = self.seen_s >= now_s - ttl_s
        by_state = np.bincount(
            self.state[live & (self.state >= 0)].astype(np.int64), minlength=len(STATES)
        )
        found = {state: int(by_state[i]) for i, state in enumerate(STATES)}
        found["unscored"] = int(np.count_nonzero(live & (self.state < 0)))
        found["silent"] = len(self.rows) - int(np.count_nonzero(live))
        return found

    def forget(self, now_s: float, ttl_s: float) -> int:
        """Drop the nodes that have been silent for too long, and return how many."""
        gone = np.nonzero(
            (self.seen_s < now_s - ttl_s * FORGET_AFTER_TTLS) & np.isfinite(self.seen_s)
        )[0]
        for row in gone.tolist():
            report = self.reports[row]
            assert report is not None
            del self.rows[report.node]
            self.reports[row] = None
            self._free.append(row)
        self.sent_ns[gone] = self.pushes[gone] = 0
        self.seen_s[gone] = -np.inf
        self.first_s[gone] = np.inf
        self.state[gone] = -1
        self.score[gone] = np.nan
        self.straggling_s[gone] = np.nan
        return len(gone)

    def row(self, node: str, now_s: float) -> NodeRow:
        """Return one node for display; raise KeyError for an unknown one."""
        i = self.rows[node]
        report = self.reports[i]
        assert report is not None
        since = float(self.straggling_s[i])
        state = int(self.state[i])
        return NodeRow(
            node=node,
            score=None if state < 0 else float(self.score[i]),
            state="" if state < 0 else STATES[state],
            age_s=now_s - float(self.seen_s[i]),
            known_for_s=now_s - float(self.first_s[i]),
            pushes=int(self.pushes[i]),
            straggling=not np.isnan(since),
            straggling_for_s=None if np.isnan(since) else now_s - since,
            sent_ns=int(self.sent_ns[i]),
            report=report,
        )
