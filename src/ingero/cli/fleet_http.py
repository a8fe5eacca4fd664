"""Asking Fleet's HTTP API from a command: TLS by scheme, errors that say what to do.

Certificates and token are those that `ingero fleet-push` shows: `fleet.tls` and `fleet.token_file` of ingero.yaml.
"""

import http.client
import json
import os
import ssl
from http import HTTPStatus
from pathlib import Path
from typing import Any

from ingero.config.ingero import load_ingero
from ingero.contract.names import FLEET_TOKEN_VARIABLE
from ingero.errors import AuthError, Unavailable
from ingero.transport.bearer import token_from
from ingero.transport.bounded import read_response_body
from ingero.transport.connect import connection_to, failure_text
from ingero.transport.endpoint import refuse_plaintext
from ingero.transport.tls import ClientTls

TIMEOUT_S = 5.0
MAX_ANSWER_BYTES = 32 << 20
RIGHT_ADDRESS = "is it the address of its threshold API (port 8080)?"


def open_connection(url: str, ca_cert: Path | None, port: int = 8080) -> http.client.HTTPConnection:
    """A connection to the host of `url`, not yet made; the port is for a URL without one."""
    fleet, example = load_ingero().fleet, f"http://host:{port} or https://host:{port}"
    if url.startswith("http://") and authorization() and not fleet.insecure:
        refuse_plaintext(url, "fleet.insecure of ingero.yaml")
    tls = ClientTls(ca=ca_cert or fleet.tls.ca, cert=fleet.tls.cert, key=fleet.tls.key)
    return connection_to(
        url, tls, http_port=port, https_port=port, timeout_s=TIMEOUT_S, example=example
    )


def authorization() -> dict[str, str]:
    """The header with Fleet's token, where there is one."""
    token = os.environ.get(FLEET_TOKEN_VARIABLE) or token_from(
        load_ingero().fleet.token_file, FLEET_TOKEN_VARIABLE
    )
    return {"Authorization": f"Bearer {token}"} if token else {}


def fleet_json(
    url: str,
    path: str,
    ca_cert: Path | None,
    body: bytes | None = None,
    kind: str = "application/json",
) -> Any:
    """A JSON answer; redirects are refused, because they would carry the token elsewhere."""
    connection = open_connection(url, ca_cert)
    headers = authorization()
    if body is not None:
        headers["Content-Type"] = kind
    try:
        connection.request("POST" if body is not None else "GET", path, body, headers)
        reply = connection.getresponse()
        data = read_response_body(reply, MAX_ANSWER_BYTES)
    except ssl.SSLCertVerificationError as error:
        raise AuthError(
            f"{url}: its certificate is not trusted: {error.verify_message}; give its authority with --ca-cert"
        ) from None
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(
            f"Fleet does not answer at {url}: {failure_text(url, error, _advice(error))}"
        ) from None
    finally:
        connection.close()
    if reply.status == 401:
        raise AuthError(
            f"Fleet at {url} wants a token; set ${FLEET_TOKEN_VARIABLE} or fleet.token_file of ingero.yaml"
        )
    if reply.status != 200:
        hint = f"; {RIGHT_ADDRESS}" if reply.status == HTTPStatus.NOT_FOUND else ""
        raise Unavailable(f"Fleet at {url} answered {reply.status}: {_reason(data)}{hint}")
    try:
        return json.loads(data)
    except ValueError:
        raise Unavailable(f"{url} answered, but not like Fleet; {RIGHT_ADDRESS}") from None


def _reason(body: bytes) -> str:
    """What Fleet said, or the beginning of what somebody else said."""
    try:
        return str(json.loads(body)["error"])
    except (ValueError, LookupError, TypeError):
        return body[:200].decode(errors="replace").strip()


def _advice(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return "if it asks for client certificates, name ours under fleet.tls in ingero.yaml"
    return "is `ingero-fleet` or `ingero up` running there? --fleet names another address"
