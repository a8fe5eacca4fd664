"""`ingero check --fleet`: does a push from here arrive, is TLS right, is the clock right, is there a quorum."""

import email.utils
import http.client
import os
import ssl
import time
import urllib.parse
from dataclasses import dataclass
from pathlib import Path

from ingero.cli.fleet_http import open_connection
from ingero.config.ingero import TOKEN_VARIABLE
from ingero.contract.names import CLUSTER_QUERY, METRICS_PATH, PROTOBUF_TYPE, QUORUM_HEADER, THRESHOLD_HEADER
from ingero.errors import IngeroError

MAX_CLOCK_DIFFERENCE_S = 2.0  # the Date header has whole seconds


@dataclass(frozen=True, slots=True)
class FleetCheck:
    """One line: what was tried, what came of it, what to do."""

    name: str
    passed: bool
    value: str
    advice: str = ""


def check_fleet(url: str, cluster: str, ca_cert: Path | None) -> list[FleetCheck]:
    """Try an empty push, which changes nothing in Fleet, and read the reply."""
    token = os.environ.get(TOKEN_VARIABLE)
    headers = {"Content-Type": PROTOBUF_TYPE} | ({"Authorization": f"Bearer {token}"} if token else {})
    path = f"{METRICS_PATH}?{CLUSTER_QUERY}={urllib.parse.quote(cluster)}"
    try:
        connection = open_connection(url, ca_cert)
        connection.connect()
    except ssl.SSLCertVerificationError as error:
        return [FleetCheck("reach", True, url), FleetCheck("TLS", False, error.verify_message, _TLS_ADVICE)]
    except ssl.SSLError as error:
        return [FleetCheck("reach", True, url), FleetCheck("TLS", False, str(error), _TLS_ADVICE)]
    except (OSError, IngeroError) as error:
        return [FleetCheck("reach", False, f"{url}: {error}", "is ingero-fleet running there, is the port open?")]
    checks = [FleetCheck("reach", True, url)]
    if isinstance(connection.sock, ssl.SSLSocket):
        checks.append(FleetCheck("TLS", True, f"{connection.sock.version()}, certificate trusted"))
    try:
        connection.request("POST", path, b"", headers)
        reply = connection.getresponse()
        reply.read(4096)
    except (OSError, http.client.HTTPException) as error:
        return [*checks, FleetCheck("push", False, str(error), "is this the OTLP/HTTP port (4318)?")]
    finally:
        connection.close()
    return [*checks, _push(reply.status), *_clock(reply), _quorum(reply, cluster)]


_TLS_ADVICE = "give the authority with --ca-cert, or use the name the certificate is for"


def _push(status: int) -> FleetCheck:
    if status == 200:
        return FleetCheck("push", True, "an empty push was accepted")
    advice = {
        401: f"set ${TOKEN_VARIABLE} to Fleet's token",
        404: "this is not the OTLP/HTTP port; try 4318",
        429: "Fleet sheds load; push less often",
        503: "Fleet is starting or stopping; try again",
    }
    return FleetCheck("push", False, f"HTTP {status}", advice.get(status, "see Fleet's log"))


def _clock(reply: http.client.HTTPResponse) -> list[FleetCheck]:
    try:
        difference_s = time.time() - email.utils.parsedate_to_datetime(reply.headers.get("Date") or "").timestamp()
    except ValueError:  # a proxy in between that keeps no time
        return []
    ok = abs(difference_s) <= MAX_CLOCK_DIFFERENCE_S
    value = f"{difference_s:+.0f} s against Fleet's"
    return [FleetCheck("clock", ok, value, "" if ok else "run NTP or PTP on both; until then times do not match")]


def _quorum(reply: http.client.HTTPResponse, cluster: str) -> FleetCheck:
    threshold, quorum = reply.headers.get(THRESHOLD_HEADER), reply.headers.get(QUORUM_HEADER)
    if quorum == "true":
        return FleetCheck("quorum", True, f"cluster {cluster} has one, threshold {threshold}")
    return FleetCheck(
        "quorum", False, f"cluster {cluster} has too few active nodes",
        "agents must push under the same cluster id; until then they judge by their own history",
    )  # fmt: skip
