"""`ingero demo`: find a slow node on this machine, without GPU, root or configuration."""

import contextlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ingero.cli.commands.demos.next_steps import next_steps
from ingero.cli.params import AS_JSON, Duration
from ingero.cli.show.table import coloured, print_json, render_table
from ingero.errors import IngeroError

if TYPE_CHECKING:
    from ingero.sim.cluster import ClusterStatus, DemoCluster
    from ingero.sim.echo import DemoEcho

SCENARIOS = ("rank", "sudden", "gradual", "recover", "fleet-outage", "inference")
SLOW_LEVEL = 0.3
RAMP_S = 10.0
OUTAGE_S = 6.0
TIMEOUT_S = 60.0  # in addition to twelve pushes; processes start slowly on a small machine
ECHO_TIMEOUT_S = 60.0


@dataclass
class DemoRun:
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


@click.command()
@click.option(
    "--nodes",
    type=click.IntRange(3, 32),
    default=None,
    help="Number of simulated nodes; 8 with 8 ranks each for `rank`, else 5.",
)
@click.option("--straggler", metavar="NAME", help="Node to slow down; the third one if omitted.")
@click.option(
    "--push-interval",
    type=Duration(),
    default="1s",
    show_default=True,
    help="Interval between pushes of an agent; in production it is 5s.",
)
@click.option(
    "--scenario",
    type=click.Choice(SCENARIOS),
    default="rank",
    show_default=True,
    help="What happens to the slow node or to Fleet; `inference` shows serving engines instead.",
)
@click.option(
    "--echo",
    "with_echo",
    is_flag=True,
    help="Also start an Echo that Fleet forwards to; it must name the same node.",
)
@click.option(
    "--keep",
    is_flag=True,
    help="Keep the cluster running afterwards, until Ctrl-C; in the scenario `rank` with keys that "
    "slow and heal ranks.",
)
@click.option(
    "--open", "opens", is_flag=True, help="Open Fleet's page in a browser; for the scenario `rank`."
)
@AS_JSON
@click.option(
    "--no-gpu",
    metavar="SCENARIO",
    help="Play one of six single-node incidents instead; `list` names them.",
)
@click.option(
    "--write-samples",
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="Write sample trace databases into this folder instead.",
)
@click.option(
    "--seed",
    type=int,
    default=1,
    show_default=True,
    help="Seed of the random numbers in samples and incidents.",
)
def command(
    nodes: int | None, straggler: str | None, push_interval: float, scenario: str, with_echo: bool,
    keep: bool, opens: bool, as_json: bool, no_gpu: str | None, write_samples: Path | None,
    seed: int,
) -> int:  # fmt: skip
    """Find a slow rank or node in a simulated cluster on this machine.

    The command starts Fleet and simulated nodes as real processes on loopback. In the scenario
    `rank` they run a training job of 64 ranks. One GPU becomes slow, and its rank is named with
    node, class, what the job loses, price and next step. The other scenarios slow a
    whole node, which is named by its health score, and let it recover. Only what the nodes measure
    is simulated; Fleet, the wire, the agents and their decisions are the real ones. The exit
    status is 0 only if the right one was named and nobody else in the whole run.

    With --scenario inference, three replicas of a simulated engine serve on loopback. The real
    agent finds them and reads their metrics pages; one of them hangs, another becomes slow.

    The incidents of --no-gpu are single-node causes of a slow job; they pass through the same
    statistics as a recording.

    \b
    Examples:
      ingero demo
      ingero demo --scenario fleet-outage
      ingero demo --nodes 8 --straggler gpu-node-05 --json
      ingero demo --no-gpu incident
      ingero demo --write-samples samples/
    """
    if write_samples is not None:
        return _write_samples(write_samples, seed, as_json)
    if no_gpu is not None:
        from ingero.cli.commands.demos.incident import play

        return play(no_gpu, as_json, seed)
    if scenario == "inference":
        from ingero.cli.commands.demos.inference import play_inference

        return play_inference(as_json, _quiet if as_json else _say)
    scenario = "sudden" if with_echo and scenario == "rank" else scenario  # Echo names nodes
    names = _names(nodes or (8 if scenario == "rank" else 5))
    chosen = straggler or names[2]
    if chosen not in names:
        raise click.UsageError(f"--straggler {chosen}: the nodes are {names[0]} … {names[-1]}")
    if scenario == "rank":
        from ingero.cli.commands.demos.job import play_job

        return play_job(names, chosen, as_json, keep=keep, opens=opens)
    run = DemoRun(chosen, push_interval, asks_echo=with_echo)
    return _run(names, run, scenario, keep, as_json, _quiet if as_json else _say)


def _names(nodes: int) -> list[str]:
    return [f"gpu-node-{number:02d}" for number in range(1, nodes + 1)]


def _run(
    names: list[str],
    run: DemoRun,
    scenario: str,
    keep: bool,
    as_json: bool,
    say: Callable[[str], None],
) -> int:
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
    run: DemoRun,
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
    run: DemoRun,
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


def _ask_echo(echo: "DemoEcho", run: DemoRun, say: Callable[[str], None]) -> None:
    from ingero.sim.cluster import CLUSTER

    found = echo.stragglers(CLUSTER, run.straggler, ECHO_TIMEOUT_S)
    run.echo_answer = found[0]["node_id"] if found else None
    evidence = found[0]["evidence"] if found else "nobody yet"
    say(
        "         Echo, asked for fleet.cluster.find_stragglers: "
        f"{run.echo_answer or '–'}   {evidence}"
    )


def _outage(
    cluster: "DemoCluster", run: DemoRun, say: Callable[[str], None], timeout_s: float
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


def _summary(run: DemoRun, status: "ClusterStatus | None") -> None:
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


def _result(run: DemoRun, scenario: str) -> dict[str, Any]:
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


def _write_samples(directory: Path, seed: int, as_json: bool) -> int:
    from ingero.sim.samples import write_samples

    written = write_samples(directory, seed)
    if as_json:
        print_json([str(path) for path in written])
        return 0
    for path in written:
        print(path)
    print(f"\nNext:\n  ingero explain -d {written[-1]}")
    print(f"  ingero export --format perfetto -d {written[-1]} -o timeline.json")
    return 0


def _wait_for_interrupt() -> None:
    try:
        while True:
            time.sleep(3600)
    except KeyboardInterrupt:
        print("stopping", file=sys.stderr)


def _say(text: str) -> None:
    print(text, flush=True)


def _quiet(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
