"""`ingero check --fleet`: checks that a push arrives, and TLS, clock and quorum."""

import email.utils
import http.client
import ssl
import time
import urllib.parse
from http import HTTPStatus

from ingero.agent.checks import Check
from ingero.contract.api_paths import OTLP_METRICS
from ingero.contract.names import (
    CLUSTER_QUERY,
    FLEET_TOKEN_VARIABLE,
    PROTOBUF_TYPE,
    QUORUM_HEADER,
    THRESHOLD_HEADER,
)
from ingero.transport.bearer import authorization
from ingero.transport.connect import failure_text, plain_reason
from ingero.transport.fleet_client import FleetClient

OTLP_HTTP_PORT = 4318
MAX_CLOCK_DIFFERENCE_S = 2.0  # the Date header has whole seconds


def check_fleet(client: FleetClient, cluster: str) -> list[Check]:
    """Send an empty push, which changes nothing in Fleet, and check the reply."""
    url = client.url
    headers = {"Content-Type": PROTOBUF_TYPE} | authorization(client.token)
    path = f"{OTLP_METRICS}?{CLUSTER_QUERY}={urllib.parse.quote(cluster)}"
    connection = client.connection(OTLP_HTTP_PORT)
    try:
        connection.connect()
    except ssl.SSLCertVerificationError as error:
        return [
            Check("reach", True, url),
            Check("TLS", False, error.verify_message, recommendation=_TLS_ADVICE),
        ]
    except ssl.SSLError as error:
        advice = failure_text(url, error, _TLS_ADVICE)
        return [
            Check("reach", True, url),
            Check("TLS", False, "no TLS connection", recommendation=advice),
        ]
    except OSError as error:
        return [
            Check(
                "reach",
                False,
                f"{url}: {plain_reason(error)}",
                recommendation="check that ingero-fleet is running there and that the port is open",
            )
        ]
    checks = [Check("reach", True, url)]
    if isinstance(connection.sock, ssl.SSLSocket):
        checks.append(Check("TLS", True, f"{connection.sock.version()}, certificate trusted"))
    try:
        connection.request("POST", path, b"", headers)
        reply = connection.getresponse()
        reply.read(4096)
    except (OSError, http.client.HTTPException) as error:
        advice = failure_text(url, error, _push_advice(error))
        return [*checks, Check("push", False, "no answer to a push", recommendation=advice)]
    finally:
        connection.close()
    if reply.status != HTTPStatus.OK:
        return [*checks, _refused_push(reply.status)]
    accepted = Check("push", True, "an empty push was accepted")
    return [*checks, accepted, *_clock(reply), _quorum(reply, cluster)]


def _push_advice(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        return "it asks for a client certificate: name ours under fleet.tls in ingero.yaml"
    return "is this the OTLP/HTTP port (4318)?"


_TLS_ADVICE = "give the authority with --ca-cert, or use the name the certificate is for"


def _refused_push(status: int) -> Check:
    advice = {
        401: f"set ${FLEET_TOKEN_VARIABLE} to Fleet's token, or fleet.token_file in ingero.yaml",
        404: "this is not the OTLP/HTTP port; try 4318",
        429: "Fleet sheds load; push less often",
        503: "Fleet is starting or stopping; try again",
    }
    return Check(
        "push", False, f"HTTP {status}", recommendation=advice.get(status, "see Fleet's log")
    )


def _clock(reply: http.client.HTTPResponse) -> list[Check]:
    try:
        difference_s = (
            time.time()
            - email.utils.parsedate_to_datetime(reply.headers.get("Date") or "").timestamp()
        )
    except ValueError:  # a proxy that sends no valid Date header
        return []
    ok = abs(difference_s) <= MAX_CLOCK_DIFFERENCE_S
    value = (
        f"within {MAX_CLOCK_DIFFERENCE_S:g} s of Fleet's"
        if ok
        else f"{difference_s:+.0f} s against Fleet's"
    )
    return [
        Check(
            "clock",
            ok,
            value,
            recommendation="" if ok else "run NTP or PTP on both; until then times do not match",
        )
    ]


def _quorum(reply: http.client.HTTPResponse, cluster: str) -> Check:
    threshold, quorum = reply.headers.get(THRESHOLD_HEADER), reply.headers.get(QUORUM_HEADER)
    if quorum == "true":
        return Check("quorum", True, f"cluster {cluster} has a quorum, threshold {threshold}")
    return Check(
        "quorum",
        False,
        f"cluster {cluster} has too few active nodes yet",
        "this is normal before agents push; until then each agent uses its own baseline",
        "start `ingero fleet-push` on the other nodes with the same cluster id",
        optional=True,
    )
