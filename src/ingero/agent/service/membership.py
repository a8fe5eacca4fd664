"""The membership of this node in a Fleet: its files, how it begins, is renewed and ends."""

import contextlib
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from ingero.contract.enrolment.code import JoinCode
from ingero.contract.enrolment.messages import EnrolReply, EnrolRequest, RenewRequest
from ingero.errors import AuthError
from ingero.files import PRIVATE, read_regular, replace_file
from ingero.storage.caller import state_folder
from ingero.storage.place import make_own_folder
from ingero.transport.bearer import read_token_file
from ingero.transport.certificates import expiry_s
from ingero.transport.enrolment.authority import NODE_DAYS, kept_key, signing_request
from ingero.transport.enrolment.client import (
    FleetAddress,
    enrol,
    fetch_authority,
    leave,
    renew,
    try_push,
)
from ingero.transport.local.machine_names import machine_addresses

RENEW_AT: Final = 2 / 3  # of its life is left when a certificate is renewed
_DAY_S: Final = 86400.0
_MAX_RECORD_BYTES: Final = 64 << 10


class Joined(msgspec.Struct):
    """What `ingero join` did, so that `ingero leave` can undo it.

    `written` and `before` are values of ingero.yaml by key.
    """

    fleet: str
    node: str
    config: str
    is_new_config: bool
    written: dict[str, str | bool] = {}
    before: dict[str, str | bool | None] = {}
    unit: str | None = None


@dataclass(frozen=True, slots=True)
class MemberFiles:
    """Where a node keeps its membership."""

    folder: Path

    @property
    def authority(self) -> Path:
        """The authority of Fleet."""
        return self.folder / "authority.crt"

    @property
    def key(self) -> Path:
        """The key of this node."""
        return self.folder / "node.key"

    @property
    def certificate(self) -> Path:
        """The certificate that Fleet signed."""
        return self.folder / "node.crt"

    @property
    def token(self) -> Path:
        """The token for pushes."""
        return self.folder / "fleet.token"

    @property
    def record(self) -> Path:
        """What `ingero join` did."""
        return self.folder / "joined.json"

    def joined(self) -> Joined | None:
        """Return what `ingero join` did; None where this node has not joined."""
        try:
            return msgspec.json.decode(read_regular(self.record, _MAX_RECORD_BYTES), type=Joined)
        except FileNotFoundError:
            return None
        except msgspec.DecodeError as error:
            raise AuthError(f"{self.record} cannot be read: {error}; move it away") from None

    def remove(self) -> None:
        """Remove every file."""
        for path in (self.record, self.token, self.certificate, self.authority, self.key):
            path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):  # somebody else keeps a file there
            self.folder.rmdir()


def default_folder() -> Path:
    """Return where the membership is kept."""
    return state_folder() / "enrolment"


def begin(files: MemberFiles, fleet: FleetAddress, code: JoinCode, node: str) -> EnrolReply:
    """Enrol this node, and write key, certificate and token; raise IngeroError.

    If that fails, the key is kept, so that the next try is about the same node.
    """
    make_own_folder(files.folder)
    authority = fetch_authority(fleet, code)
    _write(files.authority, authority)
    key = kept_key(files.key)
    request = EnrolRequest(
        node=node,
        signing_request=signing_request(key, node),
        names=own_names(node),
        addresses=_addresses(),
    )
    reply = enrol(fleet, files.authority, code, request)
    for path, text in ((files.certificate, reply.certificate), (files.token, f"{reply.token}\n")):
        _write(path, text)
    try_push(fleet, reply.push_port, files.authority, reply.token)
    return reply


def renew_if_due(files: MemberFiles, now_s: float | None = None) -> bool:
    """Renew the certificate after a third of its life; return whether it was."""
    joined = files.joined()
    if joined is None:
        return False
    now_s = time.time() if now_s is None else now_s
    until_s = expiry_s(files.certificate) or 0.0
    if until_s - now_s > RENEW_AT * NODE_DAYS * _DAY_S:
        return False
    key = kept_key(files.key)
    request = RenewRequest(
        signing_request=signing_request(key, joined.node),
        names=own_names(joined.node),
        addresses=_addresses(),
    )
    fleet = FleetAddress.parse(joined.fleet)
    reply = renew(fleet, files.authority, read_token_file(files.token), request)
    _write(files.certificate, reply.certificate)
    return True


def end(files: MemberFiles, joined: Joined) -> bool:
    """Tell Fleet that this node leaves; return False where Fleet had revoked it before."""
    token = read_token_file(files.token)
    return leave(FleetAddress.parse(joined.fleet), files.authority, token)


def own_names(node: str) -> list[str]:
    """Return the names of this machine that begin with the name of the node."""
    names = dict.fromkeys((node, socket.gethostname(), socket.getfqdn()))
    return [name for name in names if name == node or name.startswith(f"{node}.")]


def _addresses() -> list[str]:
    return [*machine_addresses(), "127.0.0.1", "::1"][:16]


def _write(path: Path, text: str) -> None:
    replace_file(path, text.encode(), PRIVATE)
