"""`ingero demo --scenario sudden` and others: a slow node, found by its health score."""

import contextlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ingero.cli.commands.demos.next_steps import next_steps
from ingero.cli.show.table import coloured, print_json, render_table
from ingero.errors import IngeroError

if TYPE_CHECKING:
    from ingero.sim.cluster import ClusterStatus, DemoCluster
    from ingero.sim.echo import DemoEcho

SLOW_LEVEL = 0.3
RAMP_S = 10.0
OUTAGE_S = 6.0
TIMEOUT_S = 60.0  # in addition to twelve pushes; processes start slowly on a small machine
ECHO_TIMEOUT_S = 60.0


@dataclass
class NodeDemo:
    """The course of one demo, for the table at the end and for `--json`."""

    straggler: str
    push_interval_s: float
    quorum_s: float | None = None
    named_after_s: float | None = None
    recovered_after_s: float | None = None
    score: float | None = None
    threshold: float | None = None
    mode: str | None = None
    wrongly_named: list[str] = field(default_factory=list)
    asks_echo: bool = False
    echo_answer: str | None = None

    @property
    def is_right(self) -> bool:
        if self.asks_echo and self.echo_answer != self.straggler:
            return False
        return (
            self.named_after_s is not None
            and self.recovered_after_s is not None
            and not self.wrongly_named
        )


def play_nodes(
    names: list[str],
    run: NodeDemo,
    scenario: str,
    say: Callable[[str], None],
    *,
    keep: bool,
    as_json: bool,
) -> int:
    """Run the demo; the exit status is 0 if the slow node was named and nobody else."""
    from ingero.sim.cluster import DemoCluster

    say(
        f"starting Fleet and {len(names)} simulated nodes "
        f"(pushes every {run.push_interval_s:g} s instead of 5 s,"
    )
    say("warm-up of 5 samples instead of 30, quorum of 3 nodes instead of 5)")
    say(f"every node has a baseline after about {10 * run.push_interval_s:.0f} s …")
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        echo = stack.enter_context(_echo(say)) if run.asks_echo else None
        cluster = DemoCluster(names, run.push_interval_s)
        if echo is not None:
            cluster.exporters, cluster.pipeline = echo.exporter(), "prometheus, otlp"
        stack.enter_context(cluster)
        try:
            _play(cluster, echo, run, scenario, say, began)
        except IngeroError as error:
            say(f"the demo could not be finished: {error}")
        status = cluster.status()
        if as_json:
            print_json(_result(run, scenario))
        else:
            _summary(run, status)
            print(next_steps(scenario, keep=keep))
        if keep:
            say(
                "\nstill running; try: ingero status --fleet "
                f"http://{cluster.addresses['threshold']}  (Ctrl-C ends it)"
            )
            _wait_for_interrupt()
    return 0 if run.is_right else 1


def _echo(say: Callable[[str], None]) -> "DemoEcho":
    from ingero.sim.echo import DemoEcho

    say("starting Echo, which stores what Fleet receives")
    return DemoEcho()


def _play(
    cluster: "DemoCluster",
    echo: "DemoEcho | None",
    run: NodeDemo,
    scenario: str,
    say: Callable[[str], None],
    began: float,
) -> None:
    timeout_s = TIMEOUT_S + 12 * run.push_interval_s
    everybody = len(cluster.node_names)
    ready = cluster.wait_for(
        lambda s: (
            s.quorum_met
            and sum(n.state == "active" and n.mode == "fleet" for n in s.nodes.values())
            == everybody
        ),
        timeout_s,
    )
    run.quorum_s = time.monotonic() - began
    say(
        f"{run.quorum_s:5.1f} s  quorum: {everybody} active nodes, "
        f"threshold {ready.threshold:.3f}, nobody is slow"
    )
    if scenario == "fleet-outage":
        _outage(cluster, run, say, timeout_s)
    for round_ in range(2 if scenario == "recover" else 1):
        again = " again" if round_ else ""
        _slow_and_recover(cluster, echo, run, scenario, say, timeout_s, again)


def _slow_and_recover(
    cluster: "DemoCluster",
    echo: "DemoEcho | None",
    run: NodeDemo,
    scenario: str,
    say: Callable[[str], None],
    timeout_s: float,
    again: str,
) -> None:
    over_s = RAMP_S if scenario == "gradual" else 0.0
    injected = time.monotonic()
    cluster.slow(run.straggler, SLOW_LEVEL, over_s)
    how = f"over {over_s:g} s" if over_s else "at once"
    say(
        f"\n         {run.straggler} now runs at {SLOW_LEVEL:.0%} of its normal throughput"
        f"{again}, {how}"
    )
    named = cluster.wait_for(lambda s: bool(s.stragglers), timeout_s + over_s)
    run.named_after_s = time.monotonic() - injected
    node = named.nodes[run.straggler]
    run.score, run.threshold, run.mode = node.score, named.threshold, node.mode
    run.wrongly_named += [name for name in named.stragglers if name != run.straggler]
    who = coloured(", ".join(named.stragglers), "31;1")
    say(
        f"T+{run.named_after_s:4.1f} s  straggler: {who}   score {node.score:.3f} < "
        f"threshold {named.threshold:.3f}, mode {node.mode}"
    )
    if echo is not None:
        _ask_echo(echo, run, say)
    cluster.slow(run.straggler, 1.0)
    restored = time.monotonic()
    say(f"\n         {run.straggler} is back at full speed")
    cluster.wait_for(lambda s: not s.stragglers, timeout_s)
    run.recovered_after_s = time.monotonic() - restored
    say(f"T+{run.recovered_after_s:4.1f} s  resolved: nobody is slow")


def _ask_echo(echo: "DemoEcho", run: NodeDemo, say: Callable[[str], None]) -> None:
    from ingero.sim.cluster import CLUSTER

    found = echo.stragglers(CLUSTER, run.straggler, ECHO_TIMEOUT_S)
    run.echo_answer = found[0]["node_id"] if found else None
    evidence = found[0]["evidence"] if found else "nobody yet"
    say(
        "         Echo, asked for fleet.cluster.find_stragglers: "
        f"{run.echo_answer or '–'}   {evidence}"
    )


def _outage(
    cluster: "DemoCluster", run: NodeDemo, say: Callable[[str], None], timeout_s: float
) -> None:
    say("\n         Fleet is killed (SIGKILL); agents continue with the last threshold")
    cluster.kill_fleet()
    time.sleep(OUTAGE_S)
    cluster.start_fleet()
    say(f"         Fleet is back after {OUTAGE_S:g} s, without its earlier state")
    began = time.monotonic()
    back = cluster.wait_for(
        lambda s: s.quorum_met and all(n.mode == "fleet" for n in s.nodes.values()), timeout_s
    )
    run.wrongly_named += back.stragglers
    flagged = ", ".join(back.stragglers) or "nobody was flagged meanwhile"
    say(f"T+{time.monotonic() - began:4.1f} s  quorum again, every agent in mode fleet; {flagged}")


def _summary(run: NodeDemo, status: "ClusterStatus | None") -> None:
    if status is not None:
        rows = [
            (
                node.name,
                node.state,
                f"{node.score:.3f}" if node.score is not None else "–",
                node.mode or "–",
                "named, then resolved" if node.name == run.straggler and run.named_after_s else "",
            )
            for node in status.nodes.values()
        ]
        print("\n" + render_table(("node", "state", "score", "mode", ""), rows))
    if run.is_right:
        print(
            coloured(
                f"\n{run.straggler} was named {run.named_after_s:.1f} s after it slowed down.",
                "32",
            )
        )
    else:
        wrong = (
            f"wrongly named: {', '.join(run.wrongly_named)}"
            if run.wrongly_named
            else "it was not named in time"
        )
        print(coloured(f"\nThe demo failed: {wrong}.", "31;1"))


def _result(run: NodeDemo, scenario: str) -> dict[str, Any]:
    return {
        "ok": run.is_right,
        "scenario": scenario,
        "straggler": run.straggler,
        "named_after_s": _rounded(run.named_after_s),
        "recovered_after_s": _rounded(run.recovered_after_s),
        "quorum_after_s": _rounded(run.quorum_s),
        "score": run.score,
        "threshold": run.threshold,
        "mode": run.mode,
        "wrongly_named": run.wrongly_named,
        **({"echo_answer": run.echo_answer} if run.asks_echo else {}),
        "push_interval_s": run.push_interval_s,
    }


def _rounded(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 2)


def _wait_for_interrupt() -> None:
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        print("stopping", file=sys.stderr)
