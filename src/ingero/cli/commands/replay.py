"""`ingero replay`: repeat what Fleet decided from its recorded inputs, with the reasons."""

import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click
import msgspec

from ingero.cli.fleet_options import FLEET, fleet_client
from ingero.cli.params import AS_JSON
from ingero.cli.recordings.ask import ask_replay
from ingero.cli.show.table import print_json, render_table
from ingero.contract.api_paths import FLEET_EPISODE_INPUTS
from ingero.contract.episodes.episode import check_episode_id
from ingero.core.counted import counted
from ingero.storage.input_log import write_recording
from ingero.transport.fleet_client import FleetClient

if TYPE_CHECKING:
    from ingero.cli.recordings.replay import ReplayAnswer

MAX_INPUT_BYTES = 512 << 20  # Fleet keeps 64 MiB, compressed


@click.command()
@click.argument("what")
@click.option(
    "--dir",
    "folder",
    type=click.Path(path_type=Path),
    help="Folder with recorded inputs that has the episode; Fleet is asked if omitted.",
)
@AS_JSON
@FLEET
def command(
    what: str,
    folder: Path | None,
    as_json: bool,
    fleet: str | None,
    context: str | None,
    ca_cert: Path | None,
) -> int:
    """Repeat Fleet's decisions from its recorded inputs, with the reasons.

    WHAT is the folder that `ingero-fleet --record-inputs` wrote, or the id of an episode. For a
    folder, the recorded inputs pass through the same engine again. For an episode, the command
    shows its verdicts with their reasons, and for each other member why it was not blamed. Fleet
    keeps the inputs of the last episodes, so it is asked for them; --dir names a recording instead.

    The exit status is 1 when a verdict differs from the recorded one in any byte. When the oldest
    file of a recording was removed, the replay begins with an engine that has not learned a
    baseline yet.

    \b
    Examples:
      ingero replay 561783c82f0dea4b
      ingero replay fleet-inputs
      ingero replay 561783c82f0dea4b --dir fleet-inputs
    """
    if folder is not None or Path(what).is_dir():
        result = ask_replay(what, folder or Path(what), wants_peers=as_json)
    else:
        with TemporaryDirectory(prefix="ingero-replay-") as kept:
            _fetch(what, fleet_client(fleet, ca_cert, context), Path(kept))
            result = ask_replay(what, Path(kept), wants_peers=as_json)
    if as_json:
        print_json(_as_json(result))
    else:
        _print(result)
    return 0 if result.is_same else 1


def _fetch(episode: str, client: FleetClient, folder: Path) -> None:
    """Write the inputs that Fleet has kept of an episode into a folder."""
    path = FLEET_EPISODE_INPUTS.format(episode=check_episode_id(episode))
    write_recording(folder, client.download(path, MAX_INPUT_BYTES))


def _as_json(result: "ReplayAnswer") -> dict[str, object]:
    return {
        "same": result.is_same,
        "pushes": result.pushes,
        "ticks": result.ticks,
        "missing": [msgspec.to_builtins(verdict) for verdict in result.missing],
        "verdicts": [
            {
                "at": each.at_s,
                "cluster": each.cluster,
                "same": each.is_same,
                "verdict": msgspec.to_builtins(each.verdict),
                "peers": [msgspec.to_builtins(peer) for peer in each.peers],
            }
            for each in result.chosen
        ],
    }


def _print(result: "ReplayAnswer") -> None:
    chosen = result.chosen
    rows = [
        (_clock(each.at_s), each.verdict.episode, each.verdict.state,
         each.verdict.node or "(fleet)", each.verdict.rank, each.verdict.cause_class,
         "yes" if each.is_same else "NO", each.verdict.evidence)
        for each in chosen
    ]  # fmt: skip
    print(
        render_table(
            ("time (UTC)", "episode", "state", "node", "rank", "class", "same", "why"), rows
        )
    )
    if chosen and not result.is_folder:
        print("\nthe other members at that time, and why they were not blamed:")
        others = sorted(chosen[0].peers, key=lambda s: -s.bars)
        rows = [(s.node, s.rank, f"{s.excess:+z.1%}", f"{s.bars:.2f}", s.reason) for s in others]  # type: ignore[misc]  # another table
        print(render_table(("node", "rank", "own time", "of the limit", "because"), rows))
    summary = (
        "every verdict is the same as recorded"
        if result.is_same
        else counted(len(result.missing), "verdict differs", "verdicts differ")
        + " from the recording"
    )
    what = (
        counted(result.pushes, "push", "pushes"),
        counted(result.ticks, "tick"),
        counted(result.verdicts, "verdict"),
    )
    print(f"\n{', '.join(what)}: {summary}")


def _clock(at_s: float) -> str:
    try:
        return datetime.datetime.fromtimestamp(at_s, datetime.UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):  # a recording can hold any number
        return f"{at_s:g} s"
