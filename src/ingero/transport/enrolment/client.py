"""A node's side of enrolment: trust Fleet by the fingerprint in the code, then send the secret."""

import hmac
import http.client
import ssl
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import urlsplit

import msgspec

from ingero.contract.api_paths import (
    FLEET_AUTHORITY,
    FLEET_ENROL,
    FLEET_ENROL_LEAVE,
    FLEET_ENROL_RENEW,
    OTLP_METRICS,
)
from ingero.contract.enrolment.code import JoinCode
from ingero.contract.enrolment.messages import (
    Authority,
    EnrolReply,
    EnrolRequest,
    LeaveReply,
    RenewReply,
    RenewRequest,
)
from ingero.contract.names import JSON_TYPE, PROTOBUF_TYPE
from ingero.contract.node_api import ErrorReply
from ingero.errors import AuthError, ConfigError, TooLarge, Unavailable
from ingero.transport.bearer import authorization
from ingero.transport.bounded import read_response_body
from ingero.transport.connect import is_plaintext, plain_reason
from ingero.transport.enrolment.authority import pem_fingerprint
from ingero.transport.tls import ClientTls, client_context, unverified_context

API_PORT: Final = 8080
TIMEOUT_S: Final = 15.0
MAX_REPLY_BYTES: Final = 256 << 10
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class FleetAddress:
    """Host and port of Fleet's API."""

    host: str
    port: int

    @classmethod
    def parse(cls, url: str) -> "FleetAddress":
        """Return the address in a URL; raise ConfigError unless it is https."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname, parts.port
        except ValueError:
            host, port = None, None
        if not host or parts.scheme != "https" or parts.path not in ("", "/"):
            raise ConfigError(f"{url!r} is not the address of a Fleet; write https://host:8080")
        return cls(host, port or API_PORT)

    def __str__(self) -> str:
        return f"https://{self._host()}:{self.port}"

    def at(self, port: int) -> str:
        """Return another port of the same machine."""
        return f"https://{self._host()}:{port}"

    def _host(self) -> str:
        return f"[{self.host}]" if ":" in self.host else self.host


def fetch_authority(fleet: FleetAddress, code: JoinCode) -> str:
    """Return Fleet's authority (PEM); raise AuthError unless it is the one that the code names.

    The connection is not trusted yet: nothing is sent but the question.
    """
    context = unverified_context(ClientTls())
    found = _ask(fleet, context, "GET", FLEET_AUTHORITY, None, {}, Authority)
    if not hmac.compare_digest(pem_fingerprint(found.certificate), code.fingerprint):
        raise AuthError(
            f"{fleet} is not the Fleet that this code was made for: wrong address, or somebody in "
            "between; nothing was sent"
        )
    return found.certificate


def enrol(
    fleet: FleetAddress, authority: Path, code: JoinCode, request: EnrolRequest
) -> EnrolReply:
    """Send the secret and the signing request to the Fleet whose authority was checked."""
    context = client_context(ClientTls(ca=authority), ssl.TLSVersion.TLSv1_3)
    headers = authorization(code.secret.hex())
    return _ask(fleet, context, "POST", FLEET_ENROL, request, headers, EnrolReply)


def renew(fleet: FleetAddress, authority: Path, token: str, request: RenewRequest) -> RenewReply:
    """Ask for a new certificate with the token of this node."""
    context = client_context(ClientTls(ca=authority), ssl.TLSVersion.TLSv1_3)
    return _ask(
        fleet, context, "POST", FLEET_ENROL_RENEW, request, authorization(token), RenewReply
    )


def leave(fleet: FleetAddress, authority: Path, token: str) -> bool:
    """Tell Fleet that this node leaves; return False where Fleet had revoked it before."""
    context = client_context(ClientTls(ca=authority), ssl.TLSVersion.TLSv1_3)
    headers = {**authorization(token), "Content-Type": JSON_TYPE}
    status, reply = _exchange(fleet, context, "POST", FLEET_ENROL_LEAVE, b"", headers)
    if status == HTTPStatus.UNAUTHORIZED:
        return False
    _decoded(fleet, status, reply, LeaveReply)
    return True


def try_push(fleet: FleetAddress, port: int, authority: Path, token: str) -> None:
    """Send an empty push, which changes nothing; raise Unavailable where it does not arrive."""
    context = client_context(ClientTls(ca=authority))
    target = FleetAddress(fleet.host, port)
    headers = {"Content-Type": PROTOBUF_TYPE, **authorization(token)}
    status, _ = _exchange(target, context, "POST", OTLP_METRICS, b"", headers)
    if status != HTTPStatus.OK:
        raise Unavailable(f"{target} answered a push with status {status}")


def _ask(
    fleet: FleetAddress,
    context: ssl.SSLContext,
    method: str,
    path: str,
    body: msgspec.Struct | None,
    headers: dict[str, str],
    kind: type[T],
) -> T:
    data = b"" if body is None else msgspec.json.encode(body)
    sent = {**headers, "Content-Type": JSON_TYPE} if method == "POST" else headers
    return _decoded(fleet, *_exchange(fleet, context, method, path, data, sent), kind)


def _decoded(fleet: FleetAddress, status: int, reply: bytes, kind: type[T]) -> T:
    if status == HTTPStatus.NOT_FOUND:
        raise Unavailable(
            f"{fleet} takes no nodes: it is no Fleet made by `ingero fleet init`, or not its API"
        )
    if status != HTTPStatus.OK:
        raise AuthError(f"{fleet} refuses: {_reason(reply)}")
    try:
        return msgspec.json.decode(reply, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise Unavailable(f"{fleet} answered, but not like Fleet; is it its API?") from None


def _exchange(
    fleet: FleetAddress,
    context: ssl.SSLContext,
    method: str,
    path: str,
    body: bytes,
    headers: dict[str, str],
) -> tuple[int, bytes]:
    connection = http.client.HTTPSConnection(
        fleet.host, fleet.port, timeout=TIMEOUT_S, context=context
    )
    try:
        connection.request(method, path, body or None, headers)
        reply = connection.getresponse()
        return reply.status, read_response_body(reply, MAX_REPLY_BYTES)
    except ssl.SSLCertVerificationError as error:
        raise AuthError(
            f"the certificate of {fleet} is not accepted: {error.verify_message}; use a name that "
            "was given to `ingero fleet init --name HOST`"
        ) from None
    except TooLarge as error:
        raise Unavailable(f"{fleet}: {error}") from None
    except (OSError, http.client.HTTPException) as error:
        if is_plaintext(error):
            why = "the server there does not use TLS; is it a Fleet made by `ingero fleet init`?"
        else:
            why = f"{plain_reason(error)}; is `ingero-fleet` running there?"
        raise Unavailable(f"Fleet does not answer at {fleet}: {why}") from None
    finally:
        connection.close()


def _reason(body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=ErrorReply).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        return body[:200].decode(errors="replace").strip() or "without a reason"
