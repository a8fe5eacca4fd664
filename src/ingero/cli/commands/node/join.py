"""`ingero join` and `ingero leave`: become a node of a Fleet, and stop being one."""

import os
import sys
from pathlib import Path

import click

from ingero.cli.params import stacked
from ingero.cli.show.table import printable
from ingero.contract.enrolment.code import CODE_VARIABLE, JoinCode, decode_code
from ingero.errors import AuthError, ConfigError

MAX_CODE_BYTES = 4096
_FILES = stacked(
    click.option(
        "--config",
        "config_path",
        type=click.Path(path_type=Path),
        help="Configuration file of the node; /etc/ingero/ingero.yaml for root, else "
        "~/.config/ingero/ingero.yaml, if omitted.",
    ),
    click.option(
        "--state-dir",
        type=click.Path(path_type=Path, file_okay=False),
        help="Folder for key, certificate and token; /var/lib/ingero/enrolment for root, else "
        "~/.local/state/ingero/enrolment, if omitted.",
    ),
)


@click.command()
@click.argument("fleet", metavar="https://FLEET")
@click.argument("code", required=False)
@click.option(
    "--code-file",
    type=click.Path(path_type=Path),
    help=f"File with the join code; else ${CODE_VARIABLE}, else you are asked for it.",
)
@click.option("--node", metavar="NAME", help="Name of this node; without it, the host name.")
@click.option(
    "--cluster", metavar="NAME", help="Cluster of this node; that of the code, if it names one."
)
@click.option(
    "--api",
    is_flag=False,
    flag_value=":8080",
    metavar="[HOST]:PORT",
    help="Serve the page and API of this node, for clients that Fleet's authority vouches for; "
    "`:8080` if no address is given.",
)
@click.option("--no-unit", is_flag=True, help="Do not install and start the unit of systemd.")
@_FILES
def join(
    fleet: str, code: str | None, code_file: Path | None, node: str | None, cluster: str | None,
    api: str | None, no_unit: bool, config_path: Path | None, state_dir: Path | None,
) -> None:  # fmt: skip
    """Join a Fleet: enrol this node, write its configuration, and start the agent.

    CODE is what `ingero fleet init` or `ingero fleet code` printed. It holds the fingerprint of
    Fleet's authority, so that nobody can pretend to be Fleet, and a secret. An argument can be read
    by every user of the machine; --code-file, the variable and the prompt keep it secret.

    Fleet signs a certificate for this node, which the agent renews, and issues a token with which
    this node pushes as itself only. `ingero leave` undoes everything.

    \b
    Examples:
      sudo ingero join https://fleet:8080 ij1_…
      sudo ingero join https://fleet:8080 --code-file code.txt --api
      ingero join https://fleet:8080 --no-unit --node gpu-07
    """
    from ingero.cli.joining import Wanted, join_fleet

    wanted = Wanted(fleet, _code(code, code_file), node, cluster, api, config_path, state_dir)
    for line in join_fleet(wanted, with_unit=not no_unit):
        print(printable(line))


def _code(given: str | None, file: Path | None) -> JoinCode:
    from ingero.files import read_regular

    if given is not None and file is not None:
        raise click.UsageError("CODE and --code-file exclude each other")
    if given is not None:
        return decode_code(given)
    if file is not None:
        text = read_regular(file, MAX_CODE_BYTES).decode("utf-8", "replace")
        if file.stat().st_mode & 0o077:
            click.echo(f"warning: other users can read {printable(str(file))}", err=True)
        return decode_code(text)
    held = os.environ.get(CODE_VARIABLE)
    if held:
        return decode_code(held)
    if sys.stdin is None or not sys.stdin.isatty():
        raise ConfigError(f"no join code: give CODE, --code-file or ${CODE_VARIABLE}")
    return decode_code(click.prompt("join code", hide_input=True))


@click.command()
@_FILES
@click.option("--force", is_flag=True, help="Remove everything here even if Fleet does not answer.")
def leave(config_path: Path | None, state_dir: Path | None, force: bool) -> None:
    """Leave the Fleet: undo what `ingero join` did on this node, and tell Fleet.

    The agent is stopped, its unit removed, and ingero.yaml is as it was before. The trace database
    stays.

    \b
    Examples:
      sudo ingero leave
      sudo ingero leave --force        Fleet is gone
    """
    from ingero.agent.service.membership import MemberFiles, default_folder
    from ingero.cli.joining import leave_fleet

    files = MemberFiles(state_dir or default_folder())
    joined = files.joined()
    if joined is None:
        raise AuthError(f"this node has not joined a Fleet: there is no {files.record}")
    for line in leave_fleet(files, joined, force=force):
        print(printable(line))
