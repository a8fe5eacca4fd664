"""The rows of each level of `ingero top`, the worst first: clusters, jobs, ranks or nodes."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from ingero.cli.show.verdicts import ago, loss_text, state_word
from ingero.cli.top.state import URGENCY, TopState
from ingero.contract.live import LiveNode, LiveRank, LiveSnapshot
from ingero.contract.verdict import Verdict, VerdictState

MAX_ROWS: Final = 500  # the slow and the worst; a filter finds the rest
# no name of a job: the key of the row that leads to nodes instead of ranks
ALL_NODES: Final = "\x00"
_STATES: Final = ("straggler", "suspect", "recovering", "learning", "healthy")


@dataclass(frozen=True, slots=True)
class Row:
    """One line: what Enter opens, the text of each column, and how bad it is."""

    key: str
    cells: tuple[str, ...]
    badness: float = 0.0  # what the default order is by
    is_slow: bool = False
    is_muted: bool = False  # slow, and somebody knows
    node: str = ""  # that can be silenced
    episode: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """The head of a column; numbers are sorted as numbers, with the largest first."""

    title: str
    is_number: bool = False


Table = tuple[Sequence[Column], list[Row]]


def cluster_rows(state: TopState) -> Table:
    """Return the clusters, those with somebody slow first."""
    columns = (
        Column("cluster"), Column("now"), Column("nodes", True), Column("silent", True),
        Column("ranks", True), Column("jobs", True), Column("lost $/h", True),
    )  # fmt: skip
    return columns, [_cluster(view) for view in state.clusters.values()]


def _cluster(view: LiveSnapshot) -> Row:
    kind, ranks = view.summary.headline.kind, view.summary.ranks
    lost = sum(v.usd_per_hour or 0.0 for v in view.verdicts if v.state is VerdictState.STRAGGLER)
    now = {"slow": "SLOW", "fleet_event": "ALL SLOW", "calm": "ok"}.get(kind, kind)
    cells = (
        view.cluster_id,
        now.replace("_", " "),
        str(len(view.nodes)),
        str(view.summary.nodes_by_state.get("silent", 0) or ""),
        str(ranks.judged + ranks.learning),
        str(len(view.jobs)),
        f"{lost:,.2f}" if lost else "",
    )
    urgency = len(URGENCY) - URGENCY.index(kind) if kind in URGENCY else 0
    return Row(view.cluster_id, cells, urgency, kind in ("slow", "fleet_event"), kind == "silenced")


def job_rows(view: LiveSnapshot) -> Table:
    """Return the jobs of a cluster, and a row that leads to its nodes."""
    columns = (
        Column("job"), Column("slow", True), Column("job loses"), Column("lost $/h", True),
        Column("ranks", True), Column("nodes", True),
    )  # fmt: skip
    rows = []
    for job in view.jobs:
        mine = [v for v in view.verdicts if v.job == job.job_id and v.state == "straggler"]
        worst = max(mine, key=lambda v: v.loss or 0.0, default=None)
        lost = sum(v.usd_per_hour or 0.0 for v in mine)
        cells = (
            job.job_id,
            str(job.slow or ""),
            loss_text(worst) if worst else "",
            f"{lost:,.2f}" if lost else "",
            str(job.ranks),
            str(job.nodes),
        )
        is_muted = bool(mine) and all(v.silenced for v in mine)
        rows.append(Row(job.job_id, cells, job.slow + lost, bool(mine), is_muted))
    slow = sum(node.straggler for node in view.nodes)
    cells = ("(all nodes)", str(slow or ""), "", "", "", str(len(view.nodes)))
    return columns, [*rows, Row(ALL_NODES, cells, -math.inf, bool(slow))]


def rank_rows(state: TopState, view: LiveSnapshot, job: str) -> Table:
    """Return the ranks of the job that the stream was asked for."""
    columns = (
        Column("rank", True), Column("node"), Column("role"), Column("state"),
        Column("job loses"), Column("own ms", True), Column("above", True), Column("late ms", True),
    )  # fmt: skip
    found = state.ranks
    if found is None or found.job_id != job:
        return columns, []
    verdicts = {(v.node, v.rank): v for v in view.verdicts if v.job == job and _is_open(v)}
    return columns, [_rank(rank, verdicts.get((rank.node_id, rank.rank))) for rank in found.ranks]


def _rank(rank: LiveRank, verdict: Verdict | None) -> Row:
    state = state_word(verdict) if verdict else rank.state
    cells = (
        "" if rank.rank is None else str(rank.rank),
        rank.node_id,
        rank.role,
        state,
        loss_text(verdict) if verdict else "",
        _number(rank.own_ms, 1),
        "" if rank.excess is None else f"{rank.excess:+z.1%}",
        _number(rank.lateness_ms, 2),
    )
    order = _STATES.index(rank.state) if rank.state in _STATES else len(_STATES)
    # whole percents, so that healthy ranks do not change places every second
    badness = 1000.0 * (len(_STATES) - order) * (order < len(_STATES) - 1)
    badness += round(100 * (rank.excess or 0.0))
    is_slow = verdict is not None and verdict.state is VerdictState.STRAGGLER
    return Row(
        f"{rank.node_id}/{rank.rank}", cells, badness, is_slow,
        is_muted=is_slow and bool(verdict and verdict.silenced), node=rank.node_id,
        episode=verdict.episode if verdict else "",
    )  # fmt: skip


def node_rows(view: LiveSnapshot, at: float) -> Table:
    """Return the nodes of a cluster: those below the threshold, then silent ones, first."""
    columns = (
        Column("node"), Column("state"), Column("score", True), Column("ranks", True),
        Column("mode"), Column("last push"), Column("version"),
    )  # fmt: skip
    silenced = {each.target for each in view.silences}
    slow = {v.node: v for v in view.verdicts if v.state is VerdictState.STRAGGLER}
    found = [
        _node(node, slow.get(node.node_id), node.node_id in silenced, at) for node in view.nodes
    ]
    return columns, found


def calibration(view: LiveSnapshot, at: float) -> str:
    """Return how many nodes calibrate and how long the last of them will; empty where none does."""
    found = [node for node in view.nodes if node.state == "calibrating"]
    if not found:
        return ""
    left = [left_s for node in found if (left_s := _left_s(node, at)) is not None]
    wait = f", about {ago(max(left))} more" if left else ""
    return f"{len(found)} {'nodes calibrate' if len(found) > 1 else 'node calibrates'}{wait}"


def _left_s(node: LiveNode, at: float) -> float | None:
    """Return how long a node will still calibrate, counted down since its last push."""
    if node.state != "calibrating" or node.ready_s is None:
        return None
    return max(node.ready_s - max(at - node.seen, 0.0), 0.0)


def _node(node: LiveNode, verdict: Verdict | None, is_muted: bool, at: float) -> Row:
    is_slow = node.straggler or verdict is not None
    state = ("silenced" if is_muted else "SLOW") if is_slow else node.state
    if verdict is not None and verdict.rank is not None:
        state += f", rank {verdict.rank}"
    if not is_slow and (left_s := _left_s(node, at)) is not None:
        state += f", {ago(left_s)} left"
    cells = (
        node.node_id,
        state,
        _number(node.score, 3),
        str(node.ranks or ""),
        node.mode or "",
        f"{ago(max(at - node.seen, 0.0))} ago",
        node.version or "",
    )
    badness = 10.0 * is_slow + 5.0 * (node.state == "silent") + 1.0 - (node.score or 0.0)
    return Row(node.node_id, cells, badness, is_slow, is_muted, node.node_id)


def chosen(rows: list[Row], wanted: str, sort: Callable[[Row], object] | None) -> list[Row]:
    """Return the rows that are shown: filtered, sorted, and at most as many as are useful."""
    words = wanted.lower().split()
    found = [row for row in rows if all(word in " ".join(row.cells).lower() for word in words)]
    found.sort(key=lambda row: -row.badness)
    kept = found[:MAX_ROWS]
    return kept if sort is None else sorted(kept, key=sort)  # type: ignore[arg-type]  # keys compare among themselves


def sort_key(columns: Sequence[Column], place: int) -> Callable[[Row], object]:
    """Return what rows are sorted by: numbers with the largest first, texts by their letters."""
    if not columns[place].is_number:
        return lambda row: (row.cells[place] == "", row.cells[place], row.key)

    def number(row: Row) -> tuple[float, str]:
        text = row.cells[place].replace(",", "").rstrip("%")
        return (-float(text) if text else math.inf), row.key

    return number


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def _is_open(verdict: Verdict) -> bool:
    return verdict.state is not VerdictState.RESOLVED
