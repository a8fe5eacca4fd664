"""A client of Fleet's HTTP API: one connection per request, errors that name the next step."""

import contextlib
import http.client
import socket
import ssl
from collections.abc import Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final, TypeVar

import msgspec

from ingero.contract.names import FLEET_TOKEN_VARIABLE
from ingero.contract.node_api import ErrorReply
from ingero.errors import AuthError, TooLarge, Unavailable
from ingero.transport.bearer import authorization
from ingero.transport.bounded import read_response_body
from ingero.transport.connect import connection_to, failure_text, plain_reason
from ingero.transport.endpoint import refuse_plaintext
from ingero.transport.tls import ClientTls

TIMEOUT_S: Final = 5.0
MAX_REPLY_BYTES: Final = 32 << 20
DEFAULT_PORT: Final = 8080
_WHICH_ADDRESS: Final = "is it the address of its threshold API (port 8080)?"
_OTHER_TOKEN: Final = (
    f"; take a token that may, in ${FLEET_TOKEN_VARIABLE}, or operator/ingero.yaml of "
    "`ingero fleet init` in $INGERO_CONFIG"
)
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetClient:
    """The address of a Fleet and the certificates and token for it.

    A token goes to another machine without TLS only where `may_send_plaintext` allows it.
    """

    url: str
    tls: ClientTls
    token: str | None = None
    may_send_plaintext: bool = False
    timeout_s: float = TIMEOUT_S

    def connection(self, port: int = DEFAULT_PORT) -> http.client.HTTPConnection:
        """Return a connection that is not yet open; the port is for a URL without one."""
        if self.url.startswith("http://") and self.token and not self.may_send_plaintext:
            refuse_plaintext(self.url, "fleet.insecure of ingero.yaml")
        return connection_to(
            self.url,
            self.tls,
            http_port=port,
            https_port=port,
            timeout_s=self.timeout_s,
            example=f"http://host:{port} or https://host:{port}",
        )

    def get(self, path: str, kind: type[T]) -> T:
        """Return what Fleet answers, decoded as `kind`."""
        return self._ask("GET", path, None, kind)

    def post(self, path: str, request: msgspec.Struct, kind: type[T]) -> T:
        """Send a request and return the answer, decoded as `kind`."""
        return self._ask("POST", path, msgspec.json.encode(request), kind)

    def download(self, path: str, max_bytes: int) -> bytes:
        """Return what Fleet answers, as it is; an error is still JSON."""
        status, data = self._exchange("GET", path, None, max_bytes)
        return data if status == HTTPStatus.OK else self._decode(status, data, bytes)

    def stream(self, path: str) -> "FleetStream":
        """Open an answer that goes on, line by line; raise where Fleet refuses."""
        connection = self.connection()
        try:
            connection.request("GET", path, None, authorization(self.token))
            opened = connection.sock  # the connection forgets it once the reply has begun
            reply = connection.getresponse()
            if reply.status != HTTPStatus.OK:
                self._decode(reply.status, read_response_body(reply, MAX_REPLY_BYTES), bytes)
        except BaseException as error:
            connection.close()
            if isinstance(error, OSError | http.client.HTTPException):
                raise self._no_answer(error) from None
            raise
        return FleetStream(opened, reply)

    def _ask(self, method: str, path: str, body: bytes | None, kind: type[T]) -> T:
        return self._decode(*self._exchange(method, path, body, MAX_REPLY_BYTES), kind)

    def _exchange(
        self, method: str, path: str, body: bytes | None, max_bytes: int
    ) -> tuple[int, bytes]:
        """Redirects are refused, because they would carry the token to another server."""
        connection, headers = self.connection(), authorization(self.token)
        if body is not None:
            headers["Content-Type"] = "application/json"
        try:
            connection.request(method, path, body, headers)
            reply = connection.getresponse()
            data = read_response_body(reply, max_bytes)
        except TooLarge as error:
            raise TooLarge(f"{self.url}: {error}") from None
        except (OSError, http.client.HTTPException) as error:
            raise self._no_answer(error) from None
        finally:
            connection.close()
        return reply.status, data

    def _no_answer(self, error: Exception) -> AuthError | Unavailable:
        if isinstance(error, ssl.SSLCertVerificationError):
            return AuthError(
                f"{self.url}: its certificate is not trusted: {error.verify_message}; "
                "give its authority with --ca-cert"
            )
        return Unavailable(
            f"Fleet does not answer at {self.url}: {failure_text(self.url, error, _advice(error))}"
        )

    def _decode(self, status: int, data: bytes, kind: type[T]) -> T:
        if status == HTTPStatus.UNAUTHORIZED:
            raise AuthError(
                f"Fleet at {self.url} wants a token; "
                f"set ${FLEET_TOKEN_VARIABLE} or fleet.token_file of ingero.yaml"
            )
        if status == HTTPStatus.FORBIDDEN:
            reason = _reason(status, data) or f"HTTP {status}"
            advice = _OTHER_TOKEN if "this token" in reason else ""  # not the host, nor a proxy
            raise AuthError(f"Fleet at {self.url} refuses: {reason}{advice}")
        if status != HTTPStatus.OK:
            raise Unavailable(f"Fleet at {self.url} answered {status}: {_reason(status, data)}")
        try:
            return msgspec.json.decode(data, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError):
            raise Unavailable(
                f"{self.url} answered, but not like Fleet; {_WHICH_ADDRESS}"
            ) from None


class FleetStream:
    """An open answer; `close` may be called by another thread and ends it."""

    def __init__(self, opened: socket.socket, reply: http.client.HTTPResponse) -> None:
        self._socket, self._reply = opened, reply

    def __iter__(self) -> Iterator[bytes]:
        """Yield whole lines until the stream ends; raise Unavailable where it breaks."""
        try:
            while line := self._reply.readline(MAX_REPLY_BYTES):
                if not line.endswith(b"\n"):
                    return
                yield line
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise Unavailable(f"the stream broke: {plain_reason(error)}") from None

    def close(self) -> None:
        """End the stream."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits for a line
        self._socket.close()


def _reason(status: int, body: bytes) -> str:
    """Return Fleet's reason, or the beginning of what another server answered."""
    try:
        reason = msgspec.json.decode(body, type=ErrorReply).error
    except (msgspec.DecodeError, UnicodeDecodeError):
        reason = body[:200].decode(errors="replace").strip()
    is_no_path = status == HTTPStatus.NOT_FOUND and reason in ("", HTTPStatus.NOT_FOUND.phrase)
    return f"{reason}; {_WHICH_ADDRESS}" if is_no_path else reason


def _advice(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return "if it asks for client certificates, name ours under fleet.tls in ingero.yaml"
    return "is `ingero-fleet` or `ingero up` running there? --fleet names another address"
