"""`ingero demo`: which scenario is played, on this machine, without GPU, root or configuration."""

import sys
from pathlib import Path

import click

from ingero.cli.params import AS_JSON, Duration
from ingero.cli.show.table import print_json

SCENARIOS = ("rank", "sudden", "gradual", "recover", "fleet-outage", "inference")


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
    node, class, what the job loses, price and next step. The other scenarios slow a whole node,
    which is named by its health score, and let it recover. Only what the nodes measure is
    simulated; Fleet, the wire, the agents and their decisions are the real ones. The exit status
    is 0 only if the right one was named and nobody else in the whole run.

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
    say = _quiet if as_json else _say
    if scenario == "inference":
        from ingero.cli.commands.demos.inference import play_inference

        return play_inference(as_json, say)
    scenario = "sudden" if with_echo and scenario == "rank" else scenario  # Echo names nodes
    names, slow = _nodes(nodes or (8 if scenario == "rank" else 5), straggler)
    if scenario == "rank":
        from ingero.cli.commands.demos.job import play_job

        return play_job(names, slow, as_json, keep=keep, opens=opens)
    from ingero.cli.commands.demos.slow_node import NodeDemo, play_nodes

    run = NodeDemo(slow, push_interval, asks_echo=with_echo)
    return play_nodes(names, run, scenario, say, keep=keep, as_json=as_json)


def _nodes(number: int, straggler: str | None) -> tuple[list[str], str]:
    """Return the names of all nodes, and the one that becomes slow."""
    names = [f"gpu-node-{place:02d}" for place in range(1, number + 1)]
    if straggler is not None and straggler not in names:
        raise click.UsageError(f"--straggler {straggler}: the nodes are {names[0]} … {names[-1]}")
    return names, straggler or names[2]


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


def _say(text: str) -> None:
    print(text, flush=True)


def _quiet(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
