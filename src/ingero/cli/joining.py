"""What `ingero join` and `ingero leave` change on a node: files, ingero.yaml and the unit."""

import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from ingero.agent.host.identity import default_node
from ingero.agent.host.sockets import find_health_socket
from ingero.agent.service.health import SOCKET_NAME, agent_health
from ingero.agent.service.membership import Joined, MemberFiles, begin, default_folder, end
from ingero.agent.service.plan import SYSTEM_DATABASE
from ingero.children.service_manager import has_systemd, run_systemctl
from ingero.config.deploy.units import AGENT_UNIT, agent_unit, installed_program
from ingero.config.edit_values import change_file
from ingero.config.ingero import load_ingero
from ingero.contract.enrolment.code import JoinCode
from ingero.contract.enrolment.messages import EnrolReply
from ingero.contract.names import DEFAULT_CLUSTER
from ingero.errors import AuthError, ConfigError, IngeroError, Unavailable
from ingero.files import PRIVATE, replace_file
from ingero.storage.caller import home
from ingero.transport.enrolment.client import FleetAddress

SYSTEM_CONFIG: Final = Path("/etc/ingero/ingero.yaml")
UNIT_FOLDER: Final = Path("/etc/systemd/system")
PACKAGED_UNITS: Final = (Path("/usr/lib/systemd/system"), Path("/lib/systemd/system"))


@dataclass(frozen=True, slots=True)
class Wanted:
    """What `ingero join` was asked for."""

    fleet: str
    code: JoinCode
    node: str | None
    cluster: str | None
    api: str | None
    config: Path | None
    state_dir: Path | None


def default_config() -> Path:
    """Return the ingero.yaml that is written: the system's for root, else the caller's own."""
    if os.geteuid() == 0:
        return SYSTEM_CONFIG
    return home() / ".config" / "ingero" / "ingero.yaml"


def join_fleet(wanted: Wanted, *, with_unit: bool) -> Iterator[str]:
    """Join, and yield what was done, line by line."""
    files = MemberFiles((wanted.state_dir or default_folder()).absolute())
    fleet = FleetAddress.parse(wanted.fleet)
    before = files.joined()
    if before is not None and FleetAddress.parse(before.fleet) != fleet:
        raise AuthError(f"this node has joined {before.fleet}; run `ingero leave` first")
    config = (wanted.config or default_config()).absolute()
    present = load_ingero(config) if config.exists() else None
    node = wanted.node or (present.agent.node if present else None) or default_node()
    reply = begin(files, fleet, wanted.code, node)
    yield f"enrolled as {reply.node}; its certificate is for {', '.join(reply.names)}"
    values = _values(wanted, files, fleet, reply)
    is_new = not config.exists()
    if present is not None and present.store.path is not None:
        values.pop("store.path", None)
    was = change_file(config, values)
    joined = Joined(str(fleet), reply.node, str(config), is_new, values, was)
    if before is not None and before.config == joined.config:  # joined again
        joined.before, joined.is_new_config = {**was, **before.before}, before.is_new_config
        joined.written = {**before.written, **values}
        joined.unit = before.unit
    _record(files, joined)
    yield f"wrote {config}"
    if with_unit:
        yield from _start_unit(files, joined, config)
    else:
        yield f"start the agent with: ingero agent --config {config}"


def _values(
    wanted: Wanted, files: MemberFiles, fleet: FleetAddress, reply: EnrolReply
) -> dict[str, str | bool]:
    if wanted.cluster and reply.cluster and wanted.cluster != reply.cluster:
        raise ConfigError(f"the join code is for cluster {reply.cluster}, not {wanted.cluster}")
    values: dict[str, str | bool] = {
        "agent.node": reply.node,
        "fleet.url": fleet.at(fleet.port),
        "fleet.endpoint": fleet.at(reply.push_port),
        "fleet.cluster_id": reply.cluster or wanted.cluster or DEFAULT_CLUSTER,
        "fleet.token_file": str(files.token),
        "fleet.tls.ca": str(files.authority),
    }
    if os.geteuid() == 0:
        values["store.path"] = str(SYSTEM_DATABASE)
    if wanted.api:
        values |= {
            "agent.api.listen": wanted.api,
            "agent.api.cert_file": str(files.certificate),
            "agent.api.key_file": str(files.key),
            "agent.api.client_ca": str(files.authority),
        }
    return values


def _record(files: MemberFiles, joined: Joined) -> None:
    replace_file(files.record, msgspec.json.encode(joined), PRIVATE)


def _start_unit(files: MemberFiles, joined: Joined, config: Path) -> Iterator[str]:
    if os.geteuid() != 0 or not has_systemd():
        yield (
            "systemd does not run here, or you are not root, so no unit was installed; "
            f"start the agent with: ingero agent --config {config}"
        )
        return
    if not any((folder / AGENT_UNIT).exists() for folder in PACKAGED_UNITS):
        program = installed_program(sys.argv[0], "ingero")
        unit = UNIT_FOLDER / AGENT_UNIT
        replace_file(unit, agent_unit(program, config, files.folder).encode(), 0o644)
        joined.unit = str(unit)
        _record(files, joined)
        run_systemctl("daemon-reload")
        yield f"wrote {unit}"
    run_systemctl("enable", AGENT_UNIT)
    run_systemctl("restart", AGENT_UNIT)
    yield "the agent runs; `ingero agent --health` shows its parts"


def leave_fleet(files: MemberFiles, joined: Joined, *, force: bool) -> Iterator[str]:
    """Leave, and yield what was done, line by line."""
    yield _tell_fleet(files, joined, force=force)
    if os.geteuid() == 0 and has_systemd():
        run_systemctl("disable", "--now", AGENT_UNIT, may_fail=True)
        if joined.unit is not None:
            Path(joined.unit).unlink(missing_ok=True)
            run_systemctl("daemon-reload", may_fail=True)
        yield "the agent is stopped"
    elif pid := _own_agent(joined.node):
        yield f"an agent that systemd did not start still runs: stop process {pid}"
    config = Path(joined.config)
    if config.exists():
        yield _restore(config, joined)
    files.remove()
    yield f"removed the certificate and the token in {files.folder}"


def _own_agent(node: str) -> int | None:
    """Return the process id of an agent that somebody started by hand on this node."""
    try:
        found = agent_health(find_health_socket(SOCKET_NAME))
    except Unavailable:
        return None
    return found.pid if found.node == node else None


def _tell_fleet(files: MemberFiles, joined: Joined, *, force: bool) -> str:
    """Tell Fleet, and return a line about it; raise AuthError unless forced."""
    try:
        was_known = end(files, joined)
    except IngeroError as error:
        if not force:
            hint = "--force removes everything here without telling Fleet"
            raise AuthError(f"{error}; {hint}") from None
        return f"Fleet was not told: {error}"
    how = "has forgotten this node" if was_known else "had revoked this node before"
    return f"{joined.fleet} {how}"


def _restore(config: Path, joined: Joined) -> str:
    """Restore the values that `ingero join` replaced; values changed since then stay."""
    present = msgspec.to_builtins(_plain(config))
    ours = {
        key: joined.before.get(key)
        for key, value in joined.written.items()
        if _at(present, key) == value
    }
    change_file(config, ours)
    if joined.is_new_config and not _plain(config):
        config.unlink()
        return f"removed {config}"
    return f"{config} is as it was before"


def _plain(config: Path) -> object:
    import yaml

    def filled(value: object) -> object:
        if not isinstance(value, dict):
            return value
        inner = {key: filled(each) for key, each in value.items()}
        return {key: each for key, each in inner.items() if each is not None and each != {}}

    return filled(yaml.safe_load(config.read_text()) or {})


def _at(document: object, key: str) -> object:
    for name in key.split("."):
        document = document.get(name) if isinstance(document, dict) else None
    return document
