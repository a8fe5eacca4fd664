"""`ingero support-bundle`: one file for somebody who helps, without secrets."""

import io
import tarfile
import time
from pathlib import Path

import click

from ingero.cli.show.table import printable
from ingero.files import PRIVATE, replace_file


@click.command()
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, dir_okay=False),
    default="ingero-support.tar.gz",
    show_default=True,
    help="File to write.",
)
@click.option(
    "--fleet-config",
    type=click.Path(path_type=Path),
    help="Configuration file of a Fleet on this machine, to be added without its secrets.",
)
def command(output: Path, fleet_config: Path | None) -> None:
    """Write versions, checks, configuration, health, logs and the last episodes into one file.

    Tokens, passwords, join codes, credentials in addresses and HTTP headers are removed. Names of
    nodes, jobs and processes, addresses and paths stay: read the file before you give it away. What
    cannot be had is named in the file together with the reason.

    \b
    Examples:
      sudo ingero support-bundle
      ingero support-bundle -o bundle.tar.gz --fleet-config /etc/ingero-fleet/fleet-config.yaml
    """
    from ingero.cli.bundle import collect

    data, names = io.BytesIO(), []
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        for name, text in collect(fleet_config):
            content = text.encode(errors="replace")
            entry = tarfile.TarInfo(f"ingero-support/{name}")
            entry.size, entry.mtime, entry.mode = len(content), int(time.time()), PRIVATE
            archive.addfile(entry, io.BytesIO(content))
            names.append((name, text.startswith("not available: ")))
    replace_file(output, data.getvalue(), PRIVATE)
    for name, is_missing in names:
        print(f"  {name}{'  (not available)' if is_missing else ''}")
    print(f"wrote {printable(str(output))}; read it before you give it away")
