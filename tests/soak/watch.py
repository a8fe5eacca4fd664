"""Who is named as slow: read from Fleet's status while it runs, and from its log at the end."""

import json
import re
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from tests.soak.ledger import METRIC, Named
from tests.support.echo_process import TOKEN

from ingero.contract.api_paths import ECHO_SQL

LOADED_WITHIN_S = 60.0
STORE_BUFFERS = "ingero_echo_store_buffer_bytes"

NODE_STATUS, RANK_VERDICT, FLEET_LOG = "status of a node", "verdict about a rank", "log of Fleet"
_VERDICT = re.compile(r"\bverdict\b.*\bstate=straggler\b")
_NODE = re.compile(r"\bnode=(\S+)")


def named_now(url: str, at_s: float) -> list[Named]:
    """Return who Fleet names at this moment; nobody while it does not answer."""
    try:
        with urllib.request.urlopen(url, timeout=5) as reply:
            clusters = json.load(reply)["clusters"]
    except (OSError, ValueError):
        return []
    return list(_named_in(clusters, at_s))


def _named_in(clusters: list[dict], at_s: float) -> Iterator[Named]:
    for cluster in clusters:
        for node in cluster["nodes"]:
            if node["straggler"]:
                yield Named(at_s, node["node_id"], NODE_STATUS)
        for verdict in cluster["verdicts"]:
            if verdict["state"] == "straggler":
                yield Named(at_s, verdict["node"], RANK_VERDICT)


def exported(address: str) -> tuple[int, dict[str, int]]:
    """Return how many requests Fleet forwarded, and how many it dropped for which reason."""
    with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as reply:
        page = reply.read().decode()
    sent = re.findall(r"^ingero_fleet_export_sent_total\{[^}]*\} (\S+)", page, re.MULTILINE)
    dropped = re.findall(
        r'^ingero_fleet_export_dropped_total\{.*reason="(\w+)"\} (\S+)', page, re.MULTILINE
    )
    return int(sum(map(float, sent))), {why: int(float(n)) for why, n in dropped if float(n)}


def buffer_bytes(address: str) -> int | None:
    """Return the memory that Echo's store caches the database in; None while it does not answer."""
    page = urllib.request.Request(
        f"http://{address}/metrics", headers={"Authorization": f"Bearer {TOKEN}"}
    )
    try:
        with urllib.request.urlopen(page, timeout=5) as reply:
            found = re.search(rf"^{STORE_BUFFERS} (\S+)", reply.read().decode(), re.MULTILINE)
    except OSError:
        return None
    return int(float(found[1])) if found else None


def loaded_events(address: str, wanted: int) -> int:
    """Return how many of the producers' events a running Echo can query.

    Waits for the last of `wanted` ones, as long as more and more are loaded.
    """
    sql = f"SELECT count(*) FROM events WHERE metric_name = '{METRIC}'"
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": "application/json"}
    found, before, end_s = 0, -1, time.monotonic() + LOADED_WITHIN_S
    while found < wanted and (found > before or time.monotonic() < end_s):
        time.sleep(1.0)
        request = urllib.request.Request(
            f"http://{address}{ECHO_SQL}", json.dumps({"sql": sql}).encode(), headers
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as reply:
                before, found = found, int(json.load(reply)["data"]["rows"][0][0])
        except OSError:
            before = found  # the store is being replaced
    return found


def named_in_log(log: Path, at_s: float) -> list[Named]:
    """Return everybody whom the log of Fleet names, at whatever time."""
    found = (_NODE.search(line) for line in log.read_text().splitlines() if _VERDICT.search(line))
    return [Named(at_s, match[1], FLEET_LOG) for match in found if match]
