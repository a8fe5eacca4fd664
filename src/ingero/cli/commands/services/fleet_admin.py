"""`ingero fleet`: make a new Fleet, let nodes join it, and revoke them."""

import datetime
import time
from pathlib import Path

import click

from ingero.cli.params import AS_JSON, Duration, stacked
from ingero.cli.show.table import print_json, printable, render_table
from ingero.config.deploy.ports import FLEET, PORTS, ports_alone
from ingero.core.counted import counted
from ingero.core.units import format_duration

DEFAULT_DIR = Path("/etc/ingero-fleet")
DAY_S = 86400.0
_DIR = click.argument(
    "folder", metavar="[DIR]", type=click.Path(path_type=Path), default=DEFAULT_DIR
)
_CODE_OPTIONS = stacked(
    click.option(
        "--nodes",
        type=click.IntRange(1, 10_000),
        default=64,
        show_default=True,
        help="Number of nodes that the join code is for.",
    ),
    click.option(
        "--valid-for",
        type=Duration(above_zero=True),
        default="24h",
        show_default=True,
        help="Time after which the join code has expired.",
    ),
    click.option(
        "--only",
        "pattern",
        default="*",
        show_default=True,
        help="Pattern that names of nodes must match, such as `gpu-*`.",
    ),
    click.option(
        "--cluster",
        metavar="NAME",
        help="Cluster that the nodes belong to; without it that of `ingero fleet init`, or each "
        "node names its own.",
    ),
)


@click.group()
def command() -> None:
    """Make a new Fleet, let nodes join it, and revoke them.

    DIR is the folder of the Fleet, /etc/ingero-fleet if omitted. These commands work on its files;
    a Fleet that is running notices within a second.

    \b
    Examples:
      ingero fleet init /etc/ingero-fleet --name fleet.example
      ingero fleet code /etc/ingero-fleet --nodes 8
      ingero fleet revoke gpu-07
    """


@command.command()
@_DIR
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="HOST",
    help="Name or address under which nodes reach Fleet; may be repeated. Without it, the names "
    "and addresses of this machine.",
)
@click.option(
    "--listen",
    "host",
    default="0.0.0.0",  # noqa: S104 - with TLS and tokens on every listener
    show_default=True,
    metavar="HOST",
    help="Address to listen on.",
)
@_CODE_OPTIONS
@stacked(
    *(
        click.option(
            f"--{flag.removeprefix('fleet-')}-port",
            f"port_{port.name}",
            type=click.IntRange(1, 65535),
            default=port.alone,
            show_default=True,
            help=f"Port of Fleet: {port.meaning}.",
        )
        for flag, port in PORTS.items()
        if port.service == FLEET
    )
)
@AS_JSON
def init(
    folder: Path, names: tuple[str, ...], host: str, nodes: int, valid_for: float, pattern: str,
    cluster: str | None, as_json: bool, **ports: int,
) -> None:  # fmt: skip
    """Make a new Fleet, and print the line that lets nodes join.

    DIR gets an authority, a certificate for Fleet, tokens with the scopes push, read and operate, a
    configuration with TLS and tokens on every address, a unit for systemd, scrape and rule files
    for Prometheus, and a folder for the person who operates it. Secrets are readable by their owner
    only. A folder that holds a Fleet is left as it is.

    \b
    Examples:
      ingero fleet init
      ingero fleet init ~/fleet --name fleet.example --nodes 16 --cluster train-a
    """
    from ingero.cli.fleet_files import NewFleet, make_fleet

    wanted = {
        **ports_alone(FLEET),
        **{key.removeprefix("port_"): each for key, each in ports.items()},
    }
    made = make_fleet(NewFleet(folder.absolute(), names, host, wanted, cluster))
    code = _new_code(folder.absolute(), nodes, valid_for, pattern, cluster)
    join = f"ingero join {made.url} {code}"
    if as_json:
        print_json({"config": str(made.folder.config), "url": made.url, "join": join, "code": code})
        return
    print(f"a Fleet is ready in {printable(str(folder))}; start it with one of")
    print(f"  ingero-fleet --config {made.folder.config}")
    print(f"  cp {made.folder.units / 'ingero-fleet.service'} /etc/systemd/system/ && "
          "systemctl enable --now ingero-fleet")  # fmt: skip
    print("then, on each node:")
    print(f"  {join}")
    _print_validity(nodes, valid_for, cluster)
    print(f"page: {made.url}/ with the token in {made.folder.token('operate')}")


@command.command()
@_DIR
@_CODE_OPTIONS
@AS_JSON
def code(
    folder: Path, nodes: int, valid_for: float, pattern: str, cluster: str | None, as_json: bool
) -> None:
    """Make another join code, and print the line that lets nodes join.

    \b
    Examples:
      ingero fleet code
      ingero fleet code ~/fleet --nodes 1 --only gpu-17 --valid-for 1h
    """
    from ingero.cli.fleet_files import cluster_of, fleet_url

    cluster = cluster or cluster_of(folder.absolute())
    made = _new_code(folder.absolute(), nodes, valid_for, pattern, cluster)
    join = f"ingero join {fleet_url(folder.absolute())} {made}"
    if as_json:
        print_json({"join": join, "code": made})
        return
    print(join)
    _print_validity(nodes, valid_for, cluster)


@command.command("nodes")
@_DIR
@AS_JSON
def list_nodes(folder: Path, as_json: bool) -> None:
    """List the nodes that have joined, and those that were revoked.

    \b
    Examples:
      ingero fleet nodes
      ingero fleet nodes ~/fleet --json
    """
    from ingero.cli.fleet_files import enrolment_of

    members = sorted(enrolment_of(folder.absolute()).read().members.items())
    if as_json:
        keys = ("node", "cluster", "names", "enrolled_s", "certificate_until_s", "revoked_s")
        print_json([{key: getattr(member, key) for key in keys} for _, member in members])
        return
    if not members:
        print("no node has joined yet; `ingero fleet code` makes a join code")
        return
    rows = [
        (
            printable(name),
            printable(member.cluster or ""),
            _day(member.enrolled_s),
            "revoked" if member.revoked_s is not None else _day(member.certificate_until_s),
        )
        for name, member in members
    ]
    print(render_table(("node", "cluster", "joined", "certificate until"), rows))


@command.command()
@click.argument("node")
@_DIR
def revoke(node: str, folder: Path) -> None:
    """Refuse a node from now on: its next push is answered with 401.

    It can join again only with a code that is made afterwards.

    \b
    Examples:
      ingero fleet revoke gpu-07
      ingero fleet revoke gpu-07 ~/fleet
    """
    from ingero.cli.fleet_files import enrolment_of
    from ingero.core.enrolment import revoked
    from ingero.storage.enrolment import AuditFile

    file = enrolment_of(folder.absolute())
    file.change(lambda now: revoked(now, node, time.time()))
    entry = {"at_s": round(time.time(), 3), "event": "revoked", "node": node}
    AuditFile(file.folder).add(entry)
    print(f"{printable(node)} is revoked; a running Fleet refuses it within a second")


def _new_code(folder: Path, nodes: int, valid_for: float, pattern: str, cluster: str | None) -> str:
    from ingero.cli.fleet_files import new_code

    return new_code(folder, nodes, valid_for, pattern, cluster)


def _print_validity(nodes: int, valid_for: float, cluster: str | None) -> None:
    whose = f" of cluster {printable(cluster)}" if cluster else ""
    print(f"  the code is for {counted(nodes, 'node')}{whose} and expires in "
          f"{format_duration(valid_for)}; keep it secret")  # fmt: skip


def _day(at_s: float) -> str:
    return datetime.datetime.fromtimestamp(at_s, datetime.UTC).strftime("%Y-%m-%d %H:%M")
