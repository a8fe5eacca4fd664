"""Limits on the page about security are those of the code."""

import sqlite3
from pathlib import Path

from ingero.agent.ebpf import process_tracker
from ingero.agent.ebpf.loader import elf
from ingero.agent.engines import find, watch
from ingero.agent.engines import scrape as engine_page
from ingero.agent.nccl import reader, rings
from ingero.agent.processes import discover, flight_recorder, info, maps, patience
from ingero.agent.recording import annotation_limits as users
from ingero.agent.stacks import symbols
from ingero.cli.recordings import ask, budget
from ingero.contract import annotations, causes, collective, node_api, silence, straggler, verdict
from ingero.contract.enrolment import messages
from ingero.contract.otlp import body, limits, pieces, rows
from ingero.contract.push import decode
from ingero.core import enrolment
from ingero.core.alerts import queue
from ingero.core.inference import baseline, judge, page
from ingero.echo import api, audit, ingest, retention, sql_guard, sql_tree
from ingero.echo import app as echo_app
from ingero.echo.store import offences, process, query, turns
from ingero.echo.tools import analysis, asker
from ingero.fleet import api as fleet_api
from ingero.fleet import cluster_verdicts, processor, series, verdicts
from ingero.fleet.causes import book as cause_book
from ingero.fleet.enrolment import routes
from ingero.fleet.episodes import book, inputs
from ingero.fleet.page import hub, node_view
from ingero.fleet.silences import api as silence_api
from ingero.fleet.silences import book as silence_book
from ingero.importers import (
    archives,
    collectives_csv,
    detect,
    gzip_file,
    inspector,
    nccl_ring,
    steps,
)
from ingero.importers import (
    flight_recorder as dump,
)
from ingero.storage import quarantine, sqlite_guard
from ingero.storage.events import store
from ingero.transport import access, admission, bearer, connections, http, uds
from ingero.transport.otlp import calls, decoding, server_grpc
from ingero.transport.tools import tool

PAGE = (Path(__file__).parents[1] / "docs/explain/security.md").read_text()
SQLITE = sqlite_guard._LIMITS
GRPC = dict(server_grpc._OPTIONS)


def size(count: int) -> str:
    for unit, name in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if count >= unit and not count % unit:
            return f"{count // unit} {name}"
    raise AssertionError(count)


def number(count: float) -> str:
    return f"{count:,.0f}"


# the beginning of a row, and what stands in its value
ROWS = [
    ("replies 401 to one IPv4", [f"{access.FAILURES_AT_ONCE} at once"]),
    (
        "replies 401 of Echo",
        [f"{api.AUDITED_FAILURES[1]} at once", f"then {api.AUDITED_FAILURES[0] * 60:.0f} per"],
    ),
    ("head of a request", [size(http.MAX_HEAD_BYTES)]),
    ("headers and trailers", [number(http.MAX_HEADERS)]),
    ("requests of one connection", [number(http.MAX_PIPELINED)]),
    ("time from the first", [f"{http.REQUEST_S:.0f} s"]),
    ("time without a request", [f"{http.KEEP_ALIVE_S} s"]),
    ("time without a call", [f"{GRPC['grpc.max_connection_idle_ms'] // 1000} s"]),
    ("TLS handshake,", [f"{connections.HANDSHAKE_S:.0f} s"]),
    ("message of a gRPC call", [f"{calls.MESSAGE_S:.0f} s; {calls.STALLED_S} s"]),
    ("gRPC messages that are", [f"{calls.MAX_UNFINISHED_MESSAGES} per listener"]),
    (
        "gRPC calls of one address",
        [number(calls.MAX_CALLS_OF_ADDRESS), f"{calls.CALLS_OF_CONNECTION} of each"],
    ),
    ("calls at once on one gRPC", [number(GRPC["grpc.max_concurrent_streams"])]),
    ("bodies that a service", [size(admission.MAX_RECEIVING_BYTES)]),
    ("the same from one address", [size(admission.MAX_RECEIVING_BYTES // admission.ADDRESS_SHARE)]),
    ("body of an OTLP request to Fleet", [size(body.MAX_BODY_BYTES)]),
    ("the same, decompressed", [size(body.MAX_DECODED_BYTES)]),
    ("expansion by", [f"{body.MAX_EXPANSION} times", size(body.ANY_EXPANSION_BYTES)]),
    ("OTLP message over gRPC", [size(server_grpc.MAX_MESSAGE_BYTES)]),
    ("body of an OTLP request to Echo", [size(ingest.MAX_REQUEST_BYTES)]),
    ("silence sent to Fleet", [size(silence_api.MAX_REQUEST_BYTES)]),
    (
        "requests of one node to join",
        [f"{routes.CHANGES_AT_ONCE} at once", f"then {routes.CHANGES_AT_ONCE} per hour"],
    ),
    ("request to join", [size(messages.MAX_REQUEST_BYTES), f"{messages.MAX_NAMES} names"]),
    (
        "wrong join codes",
        [f"{routes.WRONG_CODES_AT_ONCE} at once", f"then {routes.WRONG_CODES_AT_ONCE} per minute"],
    ),
    ("requests to join that", [number(routes.MAX_AT_ONCE)]),
    ("nodes that joined", [number(enrolment.MAX_ENROLLED)]),
    (
        "SQL with a token",
        [
            f"after {offences.FIRST_PAUSE_S:.0f} s",
            f"{offences.LONGEST_PAUSE_S / 60:.0f} minutes",
            f"after {offences.FORGOTTEN_AFTER_S / 60:.0f} minutes",
        ],
    ),
    (
        "answer to SQL",
        [
            f"{size(analysis.ANSWER_BYTES)} and {size(asker.MAX_ANSWER_BYTES)}",
            f"{number(query.MAX_COLUMNS)} columns",
        ],
    ),
    ("name of a tool", [number(tool.LONGEST_NAME)]),
    (
        "SQL statement",
        [size(sql_guard.MAX_SQL_BYTES), f"{sql_tree.MAX_DEPTH} deep", f"{analysis.SECONDS:.0f} s"],
    ),
    ("queries of Echo at once", [number(turns.READERS)]),
    (
        "queries that wait",
        [
            f"{turns.WAITING_EACH} of one token",
            f"{turns.WAITING_ALL} in all",
            f"{turns.WAIT_S:.0f} s",
        ],
    ),
    (
        "requests to `/api/versions`",
        [f"{api.VERSIONS_RATE[0]:.0f} per second", f"{api.VERSIONS_RATE[1]} at once"],
    ),
    ("gRPC messages that Echo", [number(echo_app.MAX_GRPC_CALLS)]),
    ("fields of a request", [number(limits.MAX_FIELDS)]),
    ("events of a request", [number(rows.MAX_ROWS)]),
    ("resource, scope, names", [size(rows.MAX_SHARED_BYTES)]),
    ("nesting", [f"{limits.MAX_DEPTH} messages", f"{limits.MAX_JSON_DEPTH} arrays"]),
    ("one text, such as", [size(limits.MAX_TEXT_BYTES)]),
    ("memory |", [f"{size(budget.BASE_MEMORY_BYTES)} and {budget.MEMORY_PER_BYTE} times"]),
    (
        "CPU time |",
        [
            f"{budget.BASE_CPU_S} s and {budget.CPU_S_PER_MIB} s",
            f"{budget.REPLAY_CPU_S_PER_MIB} s for those",
        ],
    ),
    ("time on the clock", [f"{budget.WALL_PER_CPU} times"]),
    (
        "files |",
        [f"{number(detect.DEFAULT_LIMITS.files)} of {size(detect.DEFAULT_LIMITS.file_bytes)}"],
    ),
    (
        "unpacked gzip",
        [
            f"{gzip_file.MAX_RATIO} times",
            size(gzip_file.SMALL_BYTES),
            size(detect.DEFAULT_LIMITS.unpacked_bytes),
            number(gzip_file.MAX_MEMBERS),
        ],
    ),
    ("Parquet", [f"{steps.MAX_ROWS // 10**6} million rows, {number(steps.MAX_OPTYPES)}"]),
    ("ranks of a job", [number(collective.MAX_RANKS)]),
    ("columns of a CSV", [number(collectives_csv.MAX_COLUMNS)]),
    (
        "entries of a Flight",
        [
            f"{dump.MAX_ENTRIES // 10**6} million",
            f"{inspector.MAX_OBJECTS // 10**6} million",
            f"{ask._MAX_RECORDS // 10**6} million",
        ],
    ),
    ("members of a tar", [f"{number(archives._MAX_MEMBERS)}; {size(archives._XZ_MEMORY_BYTES)}"]),
    ("a saved NCCL ring", [size(nccl_ring.MAX_FILE_BYTES)]),
    (
        "statement |",
        [
            number(SQLITE[sqlite3.SQLITE_LIMIT_SQL_LENGTH]),
            f"{SQLITE[sqlite3.SQLITE_LIMIT_EXPR_DEPTH]} deep",
            f"{SQLITE[sqlite3.SQLITE_LIMIT_COLUMN]} columns",
            f"{SQLITE[sqlite3.SQLITE_LIMIT_COMPOUND_SELECT]} parts",
        ],
    ),
    ("rows of an answer", [number(sqlite_guard.MAX_ROWS)]),
    (
        "one value; memory",
        [f"{size(SQLITE[sqlite3.SQLITE_LIMIT_LENGTH])}", f"{size(sqlite_guard._MAX_GROWTH_BYTES)}"],
    ),
    ("body of a request to the node API", [size(node_api.MAX_QUERY_BODY_BYTES)]),
    (
        "NCCL rings",
        [
            f"{number(rings.MAX_RINGS)}",
            f"of one user {rings.MAX_RINGS_PER_USER}",
            f"{rings.OPENED_PER_SCAN} new",
        ],
    ),
    (
        "records of one user's rings",
        [f"{number(rings.RECORDS_PER_S)} per second", f"{number(rings.RECORDS_BURST)} at once"],
    ),
    ("CPU time for one user's rings", [f"{rings.CPU_BURST_S} s at once"]),
    ("CPU time for one user's maps", [f"{symbols.CPU_BURST_S:.0f} s at once"]),
    ("names of operations", [number(reader.MAX_OPERATIONS)]),
    ("libraries of a process", [number(discover.MAX_LIBRARIES)]),
    ("list of mappings", [f"{size(maps.MAX_MAPS_BYTES)}; {size(info.MAX_ENVIRON_BYTES)}"]),
    ("CPU time to list files beside rings", [f"{rings.SCAN_SLICE_S:g} s"]),
    ("CPU time to find the functions", [f"{process_tracker.CPU_BURST_S:.0f} s at once"]),
    (
        "time in which memory of a process must answer",
        [f"{patience.STACK_S:g} s for a stack", f"pause of {patience.PAUSE_S:.0f} s"],
    ),
    (
        "reads of memory that never",
        [f"{patience.MAX_HANGING}, of one user {patience.MAX_HANGING_PER_USER}"],
    ),
    ("symbols of a library", [f"{size(elf._MAX_SYMBOLS_BYTES)}; {size(elf._MAX_PIECE)}"]),
    (
        "symbol tables that are kept",
        [f"{symbols._CACHED_FILES} files", f"{size(symbols._CACHED_BYTES)}"],
    ),
    (
        "dump of the Flight",
        [
            f"{size(flight_recorder.MAX_DUMP_BYTES)}",
            f"{flight_recorder.MAX_TARGETS_PER_USER} processes",
        ],
    ),
    ("readers of the remediation", [number(uds.MAX_CONSUMERS)]),
    (
        "lines that wait for one reader",
        [number(uds.MAX_QUEUED_LINES), f"{uds.STUCK_AFTER_S:.0f} s"],
    ),
    ("line of the remediation", [size(straggler.MAX_LINE_BYTES)]),
    ("connections of one user", [number(users.MAX_USER_CONNECTIONS)]),
    ("connections of all users", [number(users.MAX_CONNECTIONS)]),
    ("lines of one connection", [f"{number(annotations.MAX_LINES_PER_S)} per second"]),
    ("lines of one user", [f"{number(users.USER_LINES_PER_S)} per second"]),
    ("bytes of one user", [f"{size(users.USER_BYTES_PER_S)} per second"]),
    ("one line", [f"{size(annotations.MAX_LINE_BYTES)}, {annotations.MAX_LABELS} labels"]),
    ("a page", [f"{size(engine_page.MAX_PAGE_BYTES)} within {engine_page.TIMEOUT_S:.0f} s"]),
    ("lines of a page", [f"{number(page.MAX_LINES)} and {number(page.MAX_LINE)}"]),
    ("engines of a node", [number(watch.MAX_ENGINES)]),
    ("data-parallel ranks", [number(page.MAX_RANKS)]),
    (
        "processes that are looked at",
        [
            f"{find.MAX_CANDIDATES} per round",
            f"{find.MAX_OF_USER} of one user",
            f"{find.MAX_PORTS} ports each within {watch.TRY_S:.0f} s",
        ],
    ),
    ("ports that turned out", [number(watch.MAX_STRANGERS)]),
    (
        "replicas of a cluster",
        [f"{number(judge.MAX_REPLICAS)}", f"and {number(baseline.MAX_BASELINES)}"],
    ),
    ("id of a cluster, node", [f"{decode.MAX_ID_BYTES} bytes"]),
    ("what requests of one load", [size(store.MAX_SHARED_OF_LOAD)]),
    ("path and clusters", [f"{audit.LONGEST_TEXT} characters"]),
    ("requests that wait to be", [size(ingest.MAX_QUEUED_BYTES)]),
    ("audit log", [f"{number(retention.MAX_AUDIT_ROWS)} rows, {size(retention.MAX_AUDIT_BYTES)}"]),
    ("entries that wait", [f"{number(audit.MAX_WAITING)}; {number(audit.MAX_ADDRESSES)}"]),
    (
        "quarantine",
        [f"{number(quarantine.MAX_REQUESTS)} requests", f"{size(quarantine.DEFAULT_MAX_BYTES)}"],
    ),
    ("id of a node, cluster", [f"{decode.MAX_ID_BYTES} bytes"]),
    ("GPU model, workload", [f"{decode.MAX_LABEL_CHARACTERS} characters"]),
    ("clusters |", [number(processor.MAX_CLUSTERS)]),
    ("nodes of all clusters", [number(processor.MAX_NODES)]),
    (
        "last bodies",
        [
            f"{size(series.MAX_KEPT_BYTES)}",
            f"{number(series.MAX_KEPT_BODIES)} bodies",
            f"{size(series.MAX_BODY_BYTES)}",
        ],
    ),
    ("name of a metric", [f"{series._MAX_NAME_CHARACTERS} characters"]),
    ("value of a label", [f"{series._MAX_LABEL_CHARACTERS} characters"]),
    ("labels of a point", [number(series._MAX_LABELS)]),
    (
        "collectives between",
        [
            f"{number(cluster_verdicts.MAX_PENDING)} per cluster",
            f"{number(verdicts.MAX_PENDING_COLLECTIVES)} in all",
        ],
    ),
    ("name of an operation", [f"{collective.MAX_NAME_CHARACTERS} characters"]),
    ("verdicts in the reply", [f"{number(verdict.MAX_HEADER_BYTES)} bytes"]),
    (
        "asks in the reply",
        [
            f"{number(causes.MAX_ASK_BYTES)} bytes",
            f"{cause_book.MAX_NEW} new",
            f"{cause_book.MAX_ASKS} per episode",
            f"of {number(cause_book.MAX_EPISODES)}",
        ],
    ),
    ("answers of agents", [f"{causes.MAX_TEXT} printable"]),
    ("ranks whose signals", [number(cause_book.MAX_RANKS)]),
    ("silences |", [number(silence_book.MAX_SILENCES)]),
    ("time of a silence", [f"{silence.MAX_FOR_S / 86400:.0f} days"]),
    ("episodes |", [f"{number(book.MAX_EPISODES)} of all", f"{book.MAX_MOMENTS} verdicts"]),
    ("inputs that are kept", [f"{size(inputs.MAX_BYTES)}, {inputs.MAX_SEGMENTS} minutes"]),
    ("alerts that wait", [number(queue.MAX_WAITING)]),
    ("nodes listed", [number(fleet_api.MAX_LISTED_NODES)]),
    ("live streams", [number(hub.MAX_STREAMS)]),
    ("ticks that a live", [number(hub.MAX_WAITING)]),
    (
        "answer about one node",
        [
            f"{cause_book.MAX_SHOWN} ranks",
            f"{node_view.MAX_JOBS} jobs",
            f"{node_view.MAX_PEERS + 1} pushes of up to {size(node_view.MAX_BODY_BYTES)}",
        ],
    ),
]


def test_rows_have_the_values_of_the_code() -> None:
    lines = PAGE.splitlines()
    for beginning, values in ROWS:
        found = [line for line in lines if line.startswith(f"| {beginning}")]
        assert len(found) == 1, (beginning, found)
        stated = found[0].split("|")[2]
        assert [value for value in values if value not in stated] == [], (beginning, stated)


def test_what_the_text_says() -> None:
    text = " ".join(PAGE.split())
    assert f"at least {bearer.MIN_TOKEN_LENGTH} characters" in text
    assert f"at most {number(bearer.MAX_KEYS)} tokens and {size(bearer.MAX_KEY_FILE_BYTES)}" in text
    assert f"one token at most {size(bearer.MAX_TOKEN_FILE_BYTES)}" in text
    assert f"Bodies of more than {size(decoding.INLINE_BYTES)}" in text
    assert f"in pieces of {size(pieces.PIECE_BYTES)}" in text
    assert f"does not stop within {process.OVERRUN_S:.0f} s more" in text
