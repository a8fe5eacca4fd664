"""The files of a Fleet, written once by `ingero fleet init` and read by its other commands."""

import hashlib
import importlib.resources
import os
import pwd
import secrets
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from ingero.config.deploy.fleet_folder import (
    SCOPES,
    FleetFolder,
    fleet_config_text,
    operator_text,
    scrape_text,
)
from ingero.config.deploy.units import FLEET_UNIT, fleet_unit, installed_program
from ingero.config.fleet import FleetConfig
from ingero.config.loader import load_file
from ingero.contract.enrolment.code import SECRET_BYTES, JoinCode, encode_code
from ingero.core.enrolment import IssuedCode, add_code
from ingero.errors import ConfigError
from ingero.files import create_private, replace_file
from ingero.storage.enrolment import EnrolmentFile
from ingero.storage.place import make_own_folder
from ingero.transport.certificates import names_in
from ingero.transport.enrolment.authority import (
    SERVER_DAYS,
    load_authority,
    make_authority,
    new_key,
    private_pem,
)
from ingero.transport.listen import parse_address
from ingero.transport.local.machine_names import local_names, machine_addresses

RULES = ("ingero-rules", "ingero-cost-rules")


@dataclass(frozen=True, slots=True)
class NewFleet:
    """What `ingero fleet init` was asked for."""

    folder: Path
    names: tuple[str, ...]
    host: str
    ports: dict[str, int]
    cluster: str | None


@dataclass(frozen=True, slots=True)
class MadeFleet:
    """A Fleet whose files exist, and the address for nodes."""

    folder: FleetFolder
    url: str


def make_fleet(wanted: NewFleet) -> MadeFleet:
    """Write every file of a new Fleet; raise ConfigError where the folder holds one."""
    folder = FleetFolder(wanted.folder)
    if folder.config.exists() or folder.enrolment.exists():
        raise ConfigError(
            f"{wanted.folder} holds a Fleet; `ingero fleet code {wanted.folder}` makes a join "
            "code for it"
        )
    names = list(wanted.names) or [*local_names(None), *machine_addresses()]
    for each in (
        folder.root, folder.state, folder.certificate.parent, folder.tokens.parent,
        folder.enrolment, folder.operator, folder.prometheus, folder.units,
    ):  # fmt: skip
        make_own_folder(each)
    authority = make_authority(folder.enrolment, names[0])
    EnrolmentFile(folder.enrolment).change(lambda now: replace(now, cluster=wanted.cluster))
    key = new_key()
    create_private(folder.key, private_pem(key))
    every = list(dict.fromkeys([*names, "localhost", "127.0.0.1", "::1"]))
    certificate = authority.sign_server(key.public_key(), every, SERVER_DAYS)
    create_private(folder.certificate, certificate.encode())
    _write_tokens(folder)
    url = f"https://{_in_url(names[0])}:{wanted.ports['threshold']}"
    replace_file(folder.config, fleet_config_text(folder, wanted.host, wanted.ports).encode())
    load_file(FleetConfig, folder.config)  # what is written must be valid
    _write_operator(folder, authority.pem, names[0], wanted)
    _write_prometheus(folder, names[0], wanted.ports)
    user = pwd.getpwuid(os.stat(folder.root).st_uid).pw_name  # noqa: PTH116 - the owner
    program = installed_program(sys.argv[0], "ingero-fleet")
    unit = fleet_unit(program, folder.config, folder.root, user)
    replace_file(folder.units / FLEET_UNIT, unit.encode(), 0o644)
    return MadeFleet(folder, url)


def _write_tokens(folder: FleetFolder) -> None:
    entries = []
    for scope in SCOPES:
        token = secrets.token_hex(32)
        create_private(folder.token(scope), f"{token}\n".encode())
        # who operates reads as well
        scopes = ["read", "operate"] if scope == "operate" else [scope]
        entries.append({"key_name": scope, "token": token, "scopes": scopes})
    create_private(folder.tokens, msgspec.json.format(msgspec.json.encode(entries)) + b"\n")


def _write_operator(folder: FleetFolder, authority: str, name: str, wanted: NewFleet) -> None:
    key = new_key()
    signed = load_authority(folder.enrolment).sign_client(key.public_key(), "operator")
    url, endpoint = (
        f"https://{_in_url(name)}:{wanted.ports[port]}" for port in ("threshold", "http")
    )
    for file, data in (
        ("operator.key", private_pem(key)),
        ("operator.crt", signed.encode()),
        ("authority.crt", authority.encode()),
        ("operate.token", folder.token("operate").read_bytes()),
        ("ingero.yaml", operator_text(folder, url, endpoint, wanted.cluster).encode()),
    ):
        create_private(folder.operator / file, data)


def _write_prometheus(folder: FleetFolder, name: str, ports: dict[str, int]) -> None:
    text = scrape_text(folder, _in_url(name), ports)
    replace_file(folder.prometheus / "prometheus.yml", text.encode(), 0o644)
    shipped = importlib.resources.files("ingero.config.deploy")
    for rules in RULES:
        data = shipped.joinpath(f"{rules}.yaml").read_bytes()
        replace_file(folder.prometheus / f"{rules}.yml", data, 0o644)


def enrolment_of(folder: Path) -> EnrolmentFile:
    """Return the enrolment of a Fleet; raise ConfigError where there is none."""
    found = FleetFolder(folder).enrolment
    if not found.is_dir():
        raise ConfigError(f"{folder} holds no Fleet; `ingero fleet init {folder}` makes one")
    return EnrolmentFile(found)


def cluster_of(folder: Path) -> str | None:
    """Return the cluster that `ingero fleet init` was given."""
    return enrolment_of(folder).read().cluster


def new_code(
    folder: Path, nodes: int, valid_for_s: float, pattern: str, cluster: str | None
) -> str:
    """Make a join code; only the digest of its secret is kept."""
    file, now_s = enrolment_of(folder), time.time()
    authority, secret = load_authority(file.folder), secrets.token_bytes(SECRET_BYTES)
    issued = IssuedCode(
        hashlib.sha256(secret.hex().encode()).hexdigest(),
        now_s,
        now_s + valid_for_s,
        nodes,
        pattern,
        cluster,
    )
    file.change(lambda now: add_code(now, issued, now_s))
    return encode_code(JoinCode(authority.fingerprint, secret))


def fleet_url(folder: Path) -> str:
    """Return the address of a Fleet's API for nodes, from its configuration and certificate."""
    files = FleetFolder(folder)
    config = load_file(FleetConfig, files.config)
    _, port = parse_address(config.extensions.ingero_threshold.agent_endpoint)
    return f"https://{_in_url(names_in(files.certificate)[0])}:{port}"


def _in_url(host: str) -> str:
    return f"[{host}]" if ":" in host else host
