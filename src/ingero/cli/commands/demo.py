"""`ingero demo`: find a slow node on this machine, without GPU, root or configuration."""

import contextlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import click

from ingero.cli.params import AS_JSON, Duration
from ingero.cli.show.table import coloured, print_json, render_table
from ingero.errors import IngeroError

SCENARIOS = ("sudden", "gradual", "recover", "fleet-outage")
SLOW_LEVEL = 0.3
RAMP_S = 10.0
OUTAGE_S = 6.0
PATIENCE_S = 60.0  # on top of twelve pushes: starting processes takes long on a small machine
ECHO_PATIENCE_S = 60.0


@dataclass
class Story:
    """What happened, for the table at the end and for `--json`."""

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
    default=5,
    show_default=True,
    help="Number of simulated nodes.",
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
    default="sudden",
    show_default=True,
    help="What happens to the slow node or to Fleet.",
)
@click.option(
    "--echo",
    "with_echo",
    is_flag=True,
    help="Also start an Echo that Fleet forwards to; it must name the same node.",
)
@click.option("--keep", is_flag=True, help="Keep the cluster running afterwards, until Ctrl-C.")
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
    nodes: int, straggler: str | None, push_interval: float, scenario: str, with_echo: bool,
    keep: bool, as_json: bool, no_gpu: str | None, write_samples: Path | None, seed: int,
) -> int:  # fmt: skip
    """Find a slow node in a simulated cluster on this machine.

    The command starts Fleet and simulated nodes as real processes on loopback, waits for a quorum,
    slows one node, shows it being named with score, threshold, detection mode and the seconds since
    the slowdown, and lets it recover. Only the signals of the nodes are simulated; Fleet, the wire,
    the agents and their decisions are the real ones. The exit status is 0 only if the right node
    was named and no other.

    The incidents of --no-gpu are single-node causes of a slow job; they pass through the same
    statistics as a recording.

    \b
    Examples:
      ingero demo
      ingero demo --scenario fleet-outage
      ingero demo --echo
      ingero demo --nodes 8 --straggler gpu-node-05 --json
      ingero demo --no-gpu incident
      ingero demo --write-samples samples/
    """
    if write_samples is not None:
        return _write_samples(write_samples, seed, as_json)
    if no_gpu is not None:
        from ingero.cli.commands.demo_incident import play

        return play(no_gpu, as_json, seed)
    names = [f"gpu-node-{i:02d}" for i in range(1, nodes + 1)]
    chosen = straggler or names[min(2, len(names) - 1)]
    if chosen not in names:
        raise click.UsageError(f"--straggler {chosen}: the nodes are {names[0]} … {names[-1]}")
    say = _quiet if as_json else _say
    return _run(
        names, Story(chosen, push_interval, asks_echo=with_echo), scenario, keep, as_json, say
    )


def _run(
    names: list[str],
    story: Story,
    scenario: str,
    keep: bool,
    as_json: bool,
    say: Callable[[str], None],
) -> int:
    from ingero.sim.cluster import DemoCluster

    say(
        f"starting Fleet and {len(names)} simulated nodes (pushes every {story.push_interval_s:g} s instead of 5 s,"
    )
    say("warm-up of 5 samples instead of 30, quorum of 3 nodes instead of 5)")
    say(f"every node is known after about {10 * story.push_interval_s:.0f} s …")
    began = time.monotonic()
    with contextlib.ExitStack() as stack:
        echo = stack.enter_context(_echo(say)) if story.asks_echo else None
        forward = {"exporters": echo.exporter(), "pipeline": "prometheus, otlp"} if echo else {}
        cluster = stack.enter_context(DemoCluster(names, story.push_interval_s, **forward))
        try:
            _play(cluster, echo, story, scenario, say, began)
        except IngeroError as error:
            say(f"the demo did not get to its end: {error}")
        status = cluster.status()
        if as_json:
            print_json(_result(story, scenario))
        else:
            _summary(story, status)
        if keep:
            say(
                f"\nstill running; try: ingero status --fleet http://{cluster.addresses['threshold']}  (Ctrl-C ends it)"
            )
            _wait_for_interrupt()
    return 0 if story.is_right else 1


def _echo(say: Callable[[str], None]) -> Any:
    from ingero.sim.echo import DemoEcho

    say("starting Echo, which keeps what Fleet hears")
    return DemoEcho()


def _play(
    cluster: Any, echo: Any, story: Story, scenario: str, say: Callable[[str], None], began: float
) -> None:
    patience_s = PATIENCE_S + 12 * story.push_interval_s
    everybody = len(cluster.node_names)
    ready = cluster.wait_for(
        lambda s: (
            s.quorum_met
            and sum(n.state == "active" and n.mode == "fleet" for n in s.nodes.values())
            == everybody
        ),
        patience_s,
    )
    story.quorum_s = time.monotonic() - began
    say(
        f"{story.quorum_s:5.1f} s  quorum: {everybody} active nodes, threshold {ready.threshold:.3f}, nobody is slow"
    )
    if scenario == "fleet-outage":
        _outage(cluster, story, say, patience_s)
    for round_ in range(2 if scenario == "recover" else 1):
        again = " again" if round_ else ""
        _slow_and_recover(cluster, echo, story, scenario, say, patience_s, again)


def _slow_and_recover(
    cluster: Any,
    echo: Any,
    story: Story,
    scenario: str,
    say: Callable[[str], None],
    patience_s: float,
    again: str,
) -> None:
    over_s = RAMP_S if scenario == "gradual" else 0.0
    injected = time.monotonic()
    cluster.slow(story.straggler, SLOW_LEVEL, over_s)
    how = f"over {over_s:g} s" if over_s else "at once"
    say(
        f"\n         {story.straggler} now runs at {SLOW_LEVEL:.0%} of its usual throughput{again}, {how}"
    )
    named = cluster.wait_for(lambda s: bool(s.stragglers), patience_s + over_s)
    story.named_after_s = time.monotonic() - injected
    node = named.nodes[story.straggler]
    story.score, story.threshold, story.mode = node.score, named.threshold, node.mode
    story.wrongly_named += [name for name in named.stragglers if name != story.straggler]
    who = coloured(", ".join(named.stragglers), "31;1")
    say(
        f"T+{story.named_after_s:4.1f} s  straggler: {who}   score {node.score:.3f} < threshold {named.threshold:.3f}, "
        f"mode {node.mode}"
    )
    if echo is not None:
        _ask_echo(echo, story, say)
    cluster.slow(story.straggler, 1.0)
    restored = time.monotonic()
    say(f"\n         {story.straggler} is back at full speed")
    cluster.wait_for(lambda s: not s.stragglers, patience_s)
    story.recovered_after_s = time.monotonic() - restored
    say(f"T+{story.recovered_after_s:4.1f} s  resolved: nobody is slow")


def _ask_echo(echo: Any, story: Story, say: Callable[[str], None]) -> None:
    from ingero.sim.cluster import CLUSTER

    found = echo.stragglers(CLUSTER, story.straggler, ECHO_PATIENCE_S)
    story.echo_answer = found[0]["node_id"] if found else None
    evidence = found[0]["evidence"] if found else "nobody yet"
    say(
        f"         Echo, asked for fleet.cluster.find_stragglers: {story.echo_answer or '–'}   {evidence}"
    )


def _outage(cluster: Any, story: Story, say: Callable[[str], None], patience_s: float) -> None:
    say("\n         Fleet is killed (SIGKILL); agents go on with the last threshold")
    cluster.kill_fleet()
    time.sleep(OUTAGE_S)
    cluster.start_fleet()
    say(f"         Fleet is back after {OUTAGE_S:g} s, with an empty memory")
    began = time.monotonic()
    back = cluster.wait_for(
        lambda s: s.quorum_met and all(n.mode == "fleet" for n in s.nodes.values()), patience_s
    )
    story.wrongly_named += back.stragglers
    flagged = ", ".join(back.stragglers) or "nobody was flagged meanwhile"
    say(f"T+{time.monotonic() - began:4.1f} s  quorum again, every agent in mode fleet; {flagged}")


def _summary(story: Story, status: Any) -> None:
    if status is not None:
        rows = [
            (node.name, node.state, f"{node.score:.3f}" if node.score is not None else "–", node.mode or "–",
             "named, then resolved" if node.name == story.straggler and story.named_after_s is not None else "")
            for node in status.nodes.values()
        ]  # fmt: skip
        print("\n" + render_table(("node", "state", "score", "mode", ""), rows))
    if story.is_right:
        print(
            coloured(
                f"\n{story.straggler} was named {story.named_after_s:.1f} s after it slowed down.",
                "32",
            )
        )
    else:
        wrong = (
            f"wrongly named: {', '.join(story.wrongly_named)}"
            if story.wrongly_named
            else "it was not named in time"
        )
        print(coloured(f"\nThe demo failed: {wrong}.", "31;1"))
    print("\nNext:\n  ingero demo --scenario fleet-outage     agents without Fleet\n"
          "  ingero demo --no-gpu incident           why a node is slow, on one machine\n"
          "  ingero demo --keep                      look around with `ingero status`")  # fmt: skip


def _result(story: Story, scenario: str) -> dict[str, Any]:
    return {
        "ok": story.is_right,
        "scenario": scenario,
        "straggler": story.straggler,
        "named_after_s": _rounded(story.named_after_s),
        "recovered_after_s": _rounded(story.recovered_after_s),
        "quorum_after_s": _rounded(story.quorum_s),
        "score": story.score,
        "threshold": story.threshold,
        "mode": story.mode,
        "wrongly_named": story.wrongly_named,
        **({"echo_answer": story.echo_answer} if story.asks_echo else {}),
        "push_interval_s": story.push_interval_s,
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
