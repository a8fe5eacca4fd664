"""What this replica received itself: pushes are stored and answered as in a Fleet alone.

The threshold of a reply is the one that all replicas agreed on. Nothing is added to the path of a
push: `changes` finds what is new by comparing columns, four times a second.
"""

from collections.abc import Iterator
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from ingero.contract.push.decode import NodeReport
from ingero.contract.replicas.entries import Named
from ingero.contract.replicas.rows import MAX_AGE_MS, MAX_PUSHES, ROW, name_check
from ingero.contract.threshold import COLD_START, QuorumReason, ServedThreshold
from ingero.fleet.processor import Cluster, FleetProcessor
from ingero.fleet.replicas.shared import SharedState
from ingero.fleet.roster import Roster

DESCRIBED_EVERY_S: Final = 30.0  # how often a report is compared with the one all replicas have
_CHANGING: Final = {"score": None, "sent_ns": 0, "state": "", "straggling": None}


class _Told:
    """What the log was told about the rows of one roster."""

    def __init__(self) -> None:
        self._grow(0)

    def _grow(self, capacity: int) -> None:
        for name, kind, empty in (
            ("pushes", np.int64, 0),
            ("shared_row", np.int64, -1),
            ("check", np.uint32, 0),
            ("described_s", np.float64, -np.inf),
            ("again", np.bool_, False),
        ):
            column = np.full(capacity, empty, dtype=kind)
            old = getattr(self, name, column[:0])
            column[: len(old)] = old
            setattr(self, name, column)
        self.straggling: NDArray[np.bool_] = np.zeros(capacity, np.bool_)

    pushes: NDArray[np.int64]
    shared_row: NDArray[np.int64]
    check: NDArray[np.uint32]
    described_s: NDArray[np.float64]
    again: NDArray[np.bool_]  # the log is told about this row, whether or not it is new

    def follow(self, roster: Roster) -> None:
        """Keep as many rows as the roster, and forget what was told about nodes that are gone."""
        if len(self.pushes) < len(roster.pushes):
            straggling = self.straggling
            self._grow(len(roster.pushes))
            self.straggling[: len(straggling)] = straggling
        gone = roster.pushes == 0
        self.pushes[gone] = 0
        self.check[gone] = 0
        self.described_s[gone] = -np.inf
        self.shared_row[gone] = -1
        self.again[gone] = False


class Intake(FleetProcessor):
    """The nodes that push to this replica; `shared` is what all replicas agreed on."""

    def __init__(self, shared: SharedState) -> None:
        agreed = shared.processor
        super().__init__(
            agreed.policy,
            max_nodes=agreed.max_nodes,
            expected_nodes=agreed.expected_nodes,
            max_clusters=agreed.max_clusters,
        )
        self._shared = shared
        self._told: dict[str, _Told] = {}
        self.is_frozen = False  # the log has been away for longer than a node may be silent

    def tick(self, now_s: float) -> None:
        """Drop old nodes and take over the thresholds that were agreed on."""
        self.policy = self._shared.processor.policy
        super().tick(now_s)
        for name in [name for name in self._told if name not in self.clusters]:
            del self._told[name]
        for name, cluster in self.clusters.items():
            self._told.setdefault(name, _Told()).follow(cluster.roster)

    def _advance(self, cluster: Cluster, now_s: float) -> None:
        cluster.counts = cluster.roster.counts(now_s, self.policy.ttl_s)
        served = self._agreed(cluster.name)
        if cluster.served != served:
            cluster.served = served

    def served(self, cluster: str) -> ServedThreshold:
        """Return what all replicas agreed on; without the log for long, no quorum."""
        found = self.clusters.get(cluster)
        if found is None or found.served is COLD_START:  # it began with a push without a score
            return self._agreed(cluster)
        return found.served

    def _agreed(self, cluster: str) -> ServedThreshold:
        served = self._shared.processor.served(cluster)
        if self.is_frozen and served is not COLD_START:
            return ServedThreshold(served.value, False, QuorumReason.FEW_NODES)
        return served

    def tell_all(self, now_s: float) -> None:
        """Let the next `changes` hold every node that is alive: others may have missed them."""
        for name, cluster in self.clusters.items():
            told = self._told.setdefault(name, _Told())
            told.follow(cluster.roster)
            alive = cluster.roster.seen_s >= now_s - self.policy.ttl_s
            told.again[alive] = True

    def changes(self, now_s: float) -> Iterator[tuple[str, bytes, tuple[Named, ...]]]:
        """Return what is new since the last call: cluster, packed rows, and whole reports."""
        for name, cluster in self.clusters.items():
            told = self._told.setdefault(name, _Told())
            told.follow(cluster.roster)
            rows = np.nonzero((cluster.roster.pushes != told.pushes) | told.again)[0]
            if len(rows):
                yield (name, *self._cluster_changes(cluster, told, rows, now_s))

    def _cluster_changes(
        self, cluster: Cluster, told: _Told, rows: NDArray[np.intp], now_s: float
    ) -> tuple[bytes, tuple[Named, ...]]:
        roster, checks = cluster.roster, self._shared.checks_of(cluster.name)
        delta = np.clip(roster.pushes[rows] - told.pushes[rows], 0, MAX_PUSHES)
        age_ms = np.clip((now_s - roster.seen_s[rows]) * 1e3, 0, MAX_AGE_MS).astype(np.int64)
        told.pushes[rows] = roster.pushes[rows]
        told.again[rows] = False
        straggling = ~np.isnan(roster.straggling_s[rows])
        known = _known(told, rows, checks)
        is_due = now_s - told.described_s[rows] >= DESCRIBED_EVERY_S
        is_new = ~known | (straggling != told.straggling[rows])
        told.straggling[rows] = straggling
        named = []
        for place in np.nonzero(is_new | is_due)[0].tolist():
            row = int(rows[place])
            report = self._report(roster, row, bool(straggling[place]))
            is_new[place] = not self._is_described(cluster.name, told, row, report)
            if is_new[place]:
                named.append(Named(report, int(age_ms[place]), int(delta[place])))
            told.described_s[row] = now_s
        packed = np.zeros(int(np.count_nonzero(~is_new)), ROW)
        some = rows[~is_new]
        packed["row"], packed["check"] = told.shared_row[some], told.check[some]
        packed["score"], packed["sent_ns"] = roster.score[some], roster.sent_ns[some]
        packed["age_ms"], packed["pushes"] = age_ms[~is_new], delta[~is_new]
        packed["state"] = roster.state[some]
        return packed.tobytes(), tuple(named)

    def _report(self, roster: Roster, row: int, straggling: bool) -> NodeReport:
        """Return the last report of a row; one of a rank, without a score, keeps the score."""
        report = roster.reports[row]
        assert report is not None
        return msgspec.structs.replace(report, straggling=straggling)

    def _is_described(self, cluster: str, told: _Told, row: int, report: NodeReport) -> bool:
        """Tell whether all replicas know this report but for its score; note its shared row."""
        shared = self._shared.processor.clusters.get(cluster)
        place = None if shared is None else shared.roster.rows.get(report.node)
        if shared is None or place is None:
            return False
        told.shared_row[row], told.check[row] = place, name_check(report.node)
        theirs = shared.roster.reports[place]
        if theirs is None or np.isnan(shared.roster.straggling_s[place]) == report.straggling:
            return False
        return bool(
            msgspec.structs.replace(report, **_CHANGING)
            == msgspec.structs.replace(theirs, **_CHANGING)
        )


def _known(told: _Told, rows: NDArray[np.intp], checks: NDArray[np.uint32]) -> NDArray[np.bool_]:
    """Tell which rows still have the shared row that was found for them."""
    shared = told.shared_row[rows]
    inside = (shared >= 0) & (shared < len(checks))
    found = np.zeros(len(rows), np.uint32)
    found[inside] = checks[shared[inside]]
    known: NDArray[np.bool_] = inside & (found == told.check[rows]) & (told.check[rows] != 0)
    return known
