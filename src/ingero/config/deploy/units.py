"""The systemd units of the services, as `ingero fleet init` and `ingero join` write them.

They are the units that packages install, with the program and the folders of this machine.
"""

import sysconfig
from collections.abc import Mapping
from pathlib import Path
from typing import Final

AGENT_UNIT: Final = "ingero-agent.service"
FLEET_UNIT: Final = "ingero-fleet.service"
SHIPPED: Final = Path(__file__).parent
_HOMES: Final = (Path("/home"), Path("/root"))


def installed_program(started_as: str, name: str) -> Path:
    """Return where a program of ours is installed: beside the one that was started, if it is there.

    `python -m ingero` was started from its sources, where no programs are.
    """
    beside = Path(started_as).absolute().with_name(name)
    return beside if beside.is_file() else Path(sysconfig.get_path("scripts")) / name


def agent_unit(program: Path, config: Path, state: Path) -> str:
    """Return the unit of the agent. Its recorder needs capabilities; its other parts drop them."""
    return _adapted(
        AGENT_UNIT,
        {
            "Documentation": None,  # `pip install` brings no man pages
            "ExecStart": f"{program} agent --config {config}",
            "ReadWritePaths": str(state),
        },
    )


def fleet_unit(program: Path, config: Path, folder: Path, user: str) -> str:
    """Return the unit of Fleet, which runs as `user` and writes to one folder only."""
    is_in_home = any(folder.is_relative_to(home) for home in _HOMES)
    return _adapted(
        FLEET_UNIT,
        {
            "Documentation": None,
            "ExecStart": f"{program} --config {config}",
            "User": user,
            "Group": None,
            "StateDirectory": None,
            "StateDirectoryMode": None,
            "ProtectHome": "read-only" if is_in_home else "yes",
            "ReadWritePaths": str(folder),
        },
    )


def _adapted(name: str, values: Mapping[str, str | None]) -> str:
    """Return a shipped unit with other values; None removes a line, a new key follows ExecStart."""
    lines: list[str] = []
    shipped = (SHIPPED / name).read_text(encoding="utf-8").splitlines()
    new = values.keys() - {line.partition("=")[0] for line in shipped}
    for line in shipped:
        key = line.partition("=")[0]
        value = values.get(key)
        if key not in values:
            lines.append(line)
        elif value is not None:
            lines.append(f"{key}={value}")
        if key == "ExecStart":
            lines += [f"{each}={values[each]}" for each in sorted(new)]
    return "\n".join(lines) + "\n"
