"""Asking Fleet's HTTP API from a command: TLS by scheme, token from the environment, errors that say what to do."""

import http.client
import json
import os
import ssl
from pathlib import Path
from typing import Any

from ingero.config.ingero import FLEET_TOKEN_VARIABLE
from ingero.errors import AuthError, Unavailable
from ingero.transport.connect import connection_to

TIMEOUT_S = 5.0
MAX_ANSWER_BYTES = 32 << 20


def open_connection(url: str, ca_cert: Path | None) -> http.client.HTTPConnection:
    """A connection to the host of `url`."""
    example = "http://host:8080 or https://host:8080"
    return connection_to(url, ca_cert, http_port=8080, https_port=8080, timeout_s=TIMEOUT_S, example=example)


def fleet_json(
    url: str, path: str, ca_cert: Path | None, body: bytes | None = None, kind: str = "application/json"
) -> Any:
    """A JSON answer; redirects are refused, because they would carry the token elsewhere."""
    connection = open_connection(url, ca_cert)
    token = os.environ.get(FLEET_TOKEN_VARIABLE)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    if body is not None:
        headers["Content-Type"] = kind
    try:
        connection.request("POST" if body is not None else "GET", path, body, headers)
        reply = connection.getresponse()
        data = reply.read(MAX_ANSWER_BYTES)
    except ssl.SSLCertVerificationError as error:
        raise AuthError(
            f"{url}: its certificate is not trusted: {error.verify_message}; give its authority with --ca-cert"
        ) from None
    except (OSError, http.client.HTTPException) as error:
        raise Unavailable(
            f"Fleet does not answer at {url}: {error}; is `ingero-fleet` or `ingero up` running?"
        ) from None
    finally:
        connection.close()
    if reply.status == 401:
        raise AuthError(f"Fleet at {url} wants a token; set ${FLEET_TOKEN_VARIABLE}")
    if reply.status != 200:
        raise Unavailable(f"Fleet at {url} answered {reply.status}: {data[:200].decode(errors='replace').strip()}")
    try:
        return json.loads(data)
    except ValueError:
        raise Unavailable(
            f"{url} answered, but not like Fleet; is it the address of its threshold API (port 8080)?"
        ) from None
