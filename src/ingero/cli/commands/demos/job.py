"""`ingero demo`: a simulated training job of 64 ranks, one of which becomes slow."""

import math
import sys
import time
import webbrowser
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ingero.cli.commands.demos.keys import keep_running
from ingero.cli.commands.demos.next_steps import next_steps
from ingero.cli.show.table import coloured, print_json
from ingero.cli.show.verdicts import loss_text
from ingero.cli.show.wrap import screen_columns, wrap
from ingero.contract.fleet_api import ClusterStatus, NodeStatus
from ingero.contract.verdict import Verdict, VerdictState
from ingero.errors import IngeroError, Unavailable

if TYPE_CHECKING:
    from ingero.sim.cluster import DemoCluster

RANKS_PER_NODE = 8
EXCESS = 0.15  # more GPU time of the slow rank
POLL_S = 0.25
BEHIND_S = 26.0  # so that the clock is right again when all ranks are judged
PUSH_S = 4.0  # of health scores, and the timeout of every push: a second while the clock hurries
TIMEOUT_S = 300.0  # for each of: learning, naming; a crowded machine needs minutes
WIDTH = 100  # columns of text where the terminal has so many
INDENT = 9  # columns that the time takes
Cluster = ClusterStatus[NodeStatus]


@dataclass
class JobDemo:
    """The course of the demo; `others` are all ranks and nodes that were wrongly named."""

    node: str
    rank: int
    ranks: int
    learned_s: float | None = None
    named_after_s: float | None = None
    took_s: float | None = None
    verdict: Verdict | None = None
    others: set[str] = field(default_factory=set)
    is_checked: bool = False

    @property
    def is_right(self) -> bool:
        return self.named_after_s is not None and self.is_checked and not self.others

    def check(self, named: list[Verdict]) -> None:
        """Note everybody that Fleet named in the whole run, from its episodes."""
        self.is_checked = True
        self.others |= {f"rank {v.rank} on {v.node}" for v in named if v.rank != self.rank}

    def look(self, cluster: Cluster) -> None:
        """Note nodes whose health score is too low; these are not in episodes."""
        self.others |= {node.node_id for node in cluster.nodes if node.straggler}


def play_job(names: list[str], slow_node: str, as_json: bool, *, keep: bool, opens: bool) -> int:
    """Run the demo; the exit status is 0 if the slow rank was named and nobody else."""
    from ingero.sim.cluster import HURRY, DemoCluster

    say = _say_aside if as_json else _say
    ranks = len(names) * RANKS_PER_NODE
    rank = names.index(slow_node) * RANKS_PER_NODE + 3
    run = JobDemo(slow_node, rank, ranks)
    say(f"starting Fleet and a simulated job of {ranks} ranks on {len(names)} nodes")
    say(
        "(simulated: what the nodes measure; real: agents, wire, Fleet and its verdicts. While they"
    )
    say(f" learn what is normal, the clock of all of them runs {HURRY:g} times as fast.)\n")
    began_s = time.monotonic()
    with DemoCluster(names, PUSH_S, RANKS_PER_NODE, behind_s=BEHIND_S) as cluster:
        url = f"http://{cluster.addresses['threshold']}/"
        say(f"{time.monotonic() - began_s:5.1f} s  Fleet is ready; its page: {url}")
        if opens:
            webbrowser.open(url)
        try:
            _learn(cluster, run, began_s, say)
            _slow(cluster, run, say)
            run.check(cluster.named())
        except IngeroError as error:
            say(f"the demo could not be finished: {error}")
        run.took_s = time.monotonic() - began_s
        if as_json:
            print_json(_result(run))
        else:
            _conclude(run, keep=keep)
        if keep:
            keep_running(cluster, run.ranks, [run.rank], url, say)
    return 0 if run.is_right else 1


def _learn(
    cluster: "DemoCluster", run: JobDemo, began_s: float, say: Callable[[str], None]
) -> None:
    """Wait until all ranks are judged, with a line of progress on a terminal."""
    from ingero.sim.cluster import HURRY

    def here(seen: Cluster) -> bool:
        nodes = run.ranks // RANKS_PER_NODE
        _progress(f"{time.monotonic() - began_s:5.1f} s  {len(seen.nodes)} of {nodes} agents push")
        return len(seen.nodes) >= nodes

    def judged(seen: Cluster) -> bool:
        left = _left(seen.ranks.ready_s, HURRY)
        _progress(f"{time.monotonic() - began_s:5.1f} s  learning what is normal{left}")
        return seen.ranks.judged >= run.ranks

    _wait(cluster, run, here)
    _progress("")
    say(f"{time.monotonic() - began_s:5.1f} s  {run.ranks // RANKS_PER_NODE} agents push")
    cluster.hurry()
    _wait(cluster, run, judged)
    while cluster.is_late:  # from here on, seconds are seconds
        time.sleep(POLL_S)
    _progress("")
    run.learned_s = time.monotonic() - began_s
    say(f"{run.learned_s:5.1f} s  {run.ranks} ranks are judged, nobody is slow")


def _left(ready_s: float | None, hurry: float) -> str:
    """Return the time until all ranks are judged; None if it is unknown or over."""
    return f", about {math.ceil(ready_s / hurry)} s left" if ready_s else ""


def _slow(cluster: "DemoCluster", run: JobDemo, say: Callable[[str], None]) -> None:
    """Slow one rank, and print what Fleet says about it."""
    at_s = cluster.slow_rank(run.rank, EXCESS)
    say(f"\n         the GPU of rank {run.rank} on {run.node} now takes {EXCESS:.0%} longer")
    named = _wait(cluster, run, lambda seen: _verdict(seen, run.rank) is not None)
    run.named_after_s = time.time() - at_s
    run.verdict = _verdict(named, run.rank)
    assert run.verdict is not None
    for line in _verdict_lines(run.verdict, run.named_after_s):
        say(line)


def _verdict(seen: Cluster, rank: int) -> Verdict | None:
    for verdict in seen.verdicts:
        if verdict.state is VerdictState.STRAGGLER and verdict.rank == rank:
            return verdict
    return None


def _wait(cluster: "DemoCluster", run: JobDemo, condition: Callable[[Cluster], bool]) -> Cluster:
    deadline_s = time.monotonic() + TIMEOUT_S
    while time.monotonic() < deadline_s:
        cluster.check_alive()
        seen = cluster.judged()
        if seen is not None:
            run.look(seen)
            if condition(seen):
                return seen
        time.sleep(POLL_S)
    raise Unavailable(f"the expected state was not reached within {TIMEOUT_S:g} s")


def _verdict_lines(verdict: Verdict, after_s: float) -> list[str]:
    """Return the verdict as lines: who, where, why, what it costs, what to do."""
    price = verdict.usd_per_hour
    bound = "at most " if verdict.at_most else ""
    cost = "unknown" if price is None else f"{bound}${price:,.2f} per hour"
    who = coloured(f"rank {verdict.rank} on {verdict.node} is slow", "31;1")
    rows = (
        ("job", f"{verdict.job}, loses {loss_text(verdict)} of its time"),
        ("class", verdict.cause_class.value),
        ("collective", f"waited for at {verdict.collective}" if verdict.collective else "unknown"),
        ("evidence", verdict.evidence),
        ("cost", cost),
        ("next", verdict.next_step),
    )
    lines = [_wrapped(f"{'':{INDENT}}{name:<11}", text) for name, text in rows]
    return [f"T+{after_s:4.1f} s  {who}", *lines]


def _wrapped(label: str, text: str) -> str:
    """Return a labelled text whose lines fit the terminal, each below the first."""
    columns = min(WIDTH, screen_columns() or WIDTH)
    return "\n".join(wrap(label + text, columns, " " * len(label)))


def _conclude(run: JobDemo, *, keep: bool) -> None:
    if run.is_right:
        named = _wrapped(
            "",
            f"Rank {run.rank} on {run.node} was named {run.named_after_s:.1f} s after it slowed "
            f"down, and nobody else in the whole run of {run.took_s:.1f} s.",
        )
        print("\n" + coloured(named, "32"))
    else:
        wrong = f"wrongly named: {', '.join(sorted(run.others))}" if run.others else "not named"
        print(coloured(f"\nThe demo failed: {wrong}.", "31;1"))
    print(next_steps("rank", keep=keep))


def _result(run: JobDemo) -> dict[str, Any]:
    verdict = run.verdict
    return {
        "ok": run.is_right,
        "scenario": "rank",
        "node": run.node,
        "rank": run.rank,
        "ranks": run.ranks,
        "learned_after_s": None if run.learned_s is None else round(run.learned_s, 2),
        "named_after_s": None if run.named_after_s is None else round(run.named_after_s, 2),
        "took_s": None if run.took_s is None else round(run.took_s, 2),
        "class": None if verdict is None else verdict.cause_class.value,
        "collective": None if verdict is None else verdict.collective,
        "loss": None if verdict is None else verdict.loss,
        "at_most": None if verdict is None else verdict.at_most,
        "usd_per_hour": None if verdict is None else verdict.usd_per_hour,
        "next": None if verdict is None else verdict.next_step,
        "wrongly_named": sorted(run.others),
    }


def _progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)


def _say(text: str) -> None:
    print(text, flush=True)


def _say_aside(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
