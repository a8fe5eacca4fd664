"""`ingero report`: one HTML file about an episode, to send to a vendor or a colleague."""

from pathlib import Path

import click

from ingero.cli.fleet_options import FLEET, fleet_client
from ingero.cli.show.report import redacted, report_page
from ingero.cli.show.table import printable
from ingero.contract.api_paths import FLEET_EPISODE
from ingero.contract.episodes.episode import Episode, check_episode_id
from ingero.files import replace_file


@click.command()
@click.argument("episode")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    help="File to write; the id of the episode with .html if omitted.",
)
@click.option("--redact", is_flag=True, help="Replace the names of nodes, jobs and the cluster.")
@FLEET
def command(
    episode: str,
    output: Path | None,
    redact: bool,
    fleet: str | None,
    context: str | None,
    ca_cert: Path | None,
) -> int:
    """Write one HTML file about an episode.

    The file holds who was slow, what it cost, every verdict with its evidence, and why nobody else
    was blamed. It needs no network and no scripts. With --redact, names become `node-1`, `job-1`
    and so on, the same everywhere in the file.

    \b
    Examples:
      ingero report 561783c82f0dea4b -o slow-node.html
      ingero report 561783c82f0dea4b -o for-the-vendor.html --redact
    """
    path = FLEET_EPISODE.format(episode=check_episode_id(episode))
    found = fleet_client(fleet, ca_cert, context).get(path, Episode)
    target = output or Path(f"{episode}.html")
    replace_file(target, report_page(redacted(found) if redact else found).encode())
    print(f"wrote {printable(str(target))}")
    return 0
