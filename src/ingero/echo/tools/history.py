"""What happened, in order: events of a node or metric, and the stream of anomalies.

A cursor names a generation: the requests applied when its first page was asked for. Within a
generation, rows are ordered by time. At its end, the next cursor begins a generation with what
arrived since. So late arrivals are not lost, and they do not disturb pages that were read before.
"""

import asyncio
import base64
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from ingero.echo.tools.arrivals import MAX_WRITERS, Places, applied, before_window, between
from ingero.echo.tools.asker import (
    TIME_PATTERN,
    Answered,
    Asked,
    Asker,
    ClusterId,
    Json,
    Limit,
    question,
    records,
    unix_ns,
)
from ingero.echo.tools.minutes import load_minutes
from ingero.transport.tools.tool import ToolRefused

Cursor = (
    Annotated[str, Meta(description="The next_cursor of the previous page.", max_length=200)] | None
)
Time = (
    Annotated[
        str,
        Meta(
            description="Time in RFC 3339 format; UTC if it has no offset.",
            pattern=TIME_PATTERN,
            max_length=40,
        ),
    ]
    | Annotated[float, Meta(description="Unix seconds.", ge=0, le=4e9)]
    | None
)
Name = Annotated[str, Meta(max_length=256)] | None
_COLUMNS: Final = """ts, start_ts, node_id, rank, job_id, metric_name, kind,
  coalesce(value_double, value_int) AS value, cumulative_value, unit, causal_chain_id, attrs,
  detail"""
_ANOMALIES: Final = """SELECT seq, idx, ts, cluster_id, node_id, rank, 'verdict' AS kind,
  state AS severity, concat_ws(': ', class, evidence) AS summary, cause, NULL AS top_frame,
  next AS advice, episode AS id
  FROM verdicts
UNION ALL SELECT seq, idx, detected_at, cluster_id, node_id, NULL, 'causal_chain', severity,
  summary, root_cause, top_frame, recommendations->>'$[0]', chain_id
  FROM causal_chains
UNION ALL SELECT seq, idx, ts, cluster_id, node_id, rank, 'straggler_event', NULL,
  concat_ws(' ', 'score', score, 'threshold', threshold, dominant_signal), NULL, NULL, NULL,
  event_id
  FROM straggler_events"""


class HistoryQuestion(
    msgspec.Struct,
    kw_only=True,
    forbid_unknown_fields=True,
    rename={"since": "from", "until": "to"},
):
    """A selection of a cluster's events."""

    cluster_id: ClusterId = None
    node_id: Name = None
    metric_name: Name = None
    causal_chain_id: Name = None
    rank: Annotated[int, Meta(ge=0, le=2**31 - 1)] | None = None
    since: Time = None
    until: Time = None
    limit: Limit = 100
    cursor: Cursor = None


class HistoryEvent(msgspec.Struct, omit_defaults=True):
    """One event; `cumulative_value` is a running total and must not be summed."""

    ts: str | None
    metric_name: str | None
    kind: str | None = None
    node_id: str | None = None
    rank: int | None = None
    job_id: str | None = None
    start_ts: str | None = None
    value: float | str | None = None
    cumulative_value: float | str | None = None
    unit: str | None = None
    causal_chain_id: str | None = None
    attrs: Json = {}
    detail: Json = {}


class HistoryAnswer(msgspec.Struct, kw_only=True):
    """One page of events.

    `more` means that another page follows; `next_cursor` continues, later also with new events.
    """

    cluster_id: str
    events: list[HistoryEvent]
    total: int
    truncated: bool
    more: bool
    next_cursor: str
    notes: list[str] = []


@question
async def event_history(asker: Asker, asked: HistoryQuestion) -> HistoryAnswer:
    """Events ordered by time, filtered by node, metric, rank, causal chain and time.

    Start narrow: a node and a metric. `total` counts all matches; use next_cursor for the next
    page. A cursor never skips or repeats an event, and the one of the last page continues with what
    arrives later.
    """
    cluster = await asker.cluster(asked.cluster_id, "all")
    at = await _begun(asker, _decode(asked.cursor) or _Place({}, {}))
    where: list[str] = ["cluster_id = $1"]
    params: list[Any] = [cluster]
    is_in_minutes = asked.causal_chain_id is None and asked.rank is None
    for column, value in (
        ("node_id", asked.node_id),
        ("metric_name", asked.metric_name),
        ("causal_chain_id", asked.causal_chain_id),
        ("rank", asked.rank),
    ):
        if value is not None:
            params.append(value)
            where.append(f"{column} = ${len(params)}")
    for operator, moment in ((">=", asked.since), ("<", asked.until)):
        if moment is not None:
            is_in_minutes = False
            params.append(unix_ns(moment))
            where.append(f"ts {operator} make_timestamp_ns(${len(params)})")
    condition = " AND ".join(where)
    found, total = await asyncio.gather(
        _page(asker, "events", condition, params, at, asked.limit, _COLUMNS),
        _total(asker, "events", condition, params, at, is_in_minutes=is_in_minutes),
    )
    events = [msgspec.convert({**row, **_objects(row)}, HistoryEvent) for row in found.rows]
    more = found.more
    notes = [
        f"{total} events match; get the next page with next_cursor, or narrow by metric_name, "
        "node_id, from and to"
    ] * more
    return HistoryAnswer(
        cluster_id=cluster,
        events=events,
        total=total,
        truncated=more,
        more=more,
        next_cursor=found.cursor,
        notes=notes,
    )


class AnomaliesQuestion(Asked, kw_only=True):
    """The stream of anomalies."""

    node_id: Name = None
    limit: Limit = 100
    cursor: Cursor = None


class Anomaly(msgspec.Struct, omit_defaults=True):
    """One report.

    `kind` is verdict, causal_chain or straggler_event; `severity` is the state of a verdict or the
    severity of a chain. `cause` says why, and `top_frame` from which place in the code most of the
    slow time came.
    """

    ts: str | None
    kind: str
    node_id: str | None = None
    rank: int | None = None
    severity: str | None = None
    summary: str | None = None
    cause: str | None = None
    top_frame: str | None = None
    advice: str | None = None
    id: str | None = None


class AnomaliesAnswer(Answered, kw_only=True):
    """`total` counts the anomalies from this cursor on."""

    anomalies: list[Anomaly]
    total: int
    more: bool
    next_cursor: str


@question
async def anomalies(asker: Asker, asked: AnomaliesQuestion) -> AnomaliesAnswer:
    """Everything that was reported as wrong, and why: verdicts, causal chains, straggler events.

    Keep next_cursor and ask again to follow the stream: nothing is skipped or repeated. The window
    applies to the first page only.
    """
    cluster = await asker.cluster(asked.cluster_id, asked.window)
    at = _decode(asked.cursor)
    params: list[Any] = [cluster]
    where = "cluster_id = $1"
    if at is None:
        newest = await applied(asker)
        at = _Place(await before_window(asker, asker.since_us(asked.window), newest), newest)
    at = await _begun(asker, at)
    if asked.node_id is not None:
        params.append(asked.node_id)
        where += f" AND node_id = ${len(params)}"
    columns = "ts, kind, node_id, rank, severity, summary, cause, top_frame, advice, id"
    found, total = await asyncio.gather(
        _page(asker, f"({_ANOMALIES})", where, params, at, asked.limit, columns),
        _total(asker, f"({_ANOMALIES})", where, params, at),
    )
    return AnomaliesAnswer(
        cluster_id=cluster,
        window=asked.window,
        truncated=found.more,
        notes=["get the next page with next_cursor, or name a node_id"] * found.more,
        anomalies=[msgspec.convert(row, Anomaly) for row in found.rows],
        total=total,
        more=found.more,
        next_cursor=found.cursor,
    )


class _Place(msgspec.Struct, array_like=True):
    """A position: requests after `low` up to `high`, rows after the last one returned."""

    low: Places
    high: Places
    at_ns: int = -1
    seq: int = 0
    idx: int = 0

    @property
    def requests(self) -> str:
        """The condition for requests of its generation."""
        return between(self.low, self.high)


class _Page(msgspec.Struct):
    rows: list[Json]
    more: bool
    cursor: str


async def _begun(asker: Asker, at: _Place) -> _Place:
    """Begin the next generation if the previous one was read to its end."""
    return _Place(at.low, await applied(asker)) if at.high == at.low else at


async def _page(
    asker: Asker, source: str, where: str, params: list[Any], at: _Place, limit: int, columns: str
) -> _Page:
    after = (
        ""
        if at.at_ns < 0
        else f" AND (ts, seq, idx) > (make_timestamp_ns({at.at_ns}), {at.seq}, {at.idx})"
    )
    found = await asker.query(
        f"SELECT epoch_ns(ts) AS _at, seq AS _seq, idx AS _idx, {columns} FROM {source} "
        f"WHERE {where} AND ts IS NOT NULL AND {at.requests}{after} "
        f"ORDER BY ts, seq, idx LIMIT {limit + 1}",
        params,
        limit + 1,
    )
    rows = records(found)
    more = len(rows) > limit or found.truncated
    rows = rows[:limit]
    place = _Place(at.high, at.high)
    if more and rows:
        last = rows[-1]
        place = _Place(at.low, at.high, last["_at"], last["_seq"], last["_idx"])
    return _Page(rows, more, _encode(place))


async def _total(
    asker: Asker,
    source: str,
    where: str,
    params: list[Any],
    at: _Place,
    *,
    is_in_minutes: bool = False,
) -> int:
    """Return how many rows a generation has.

    Events are counted by minutes of arrival, if these have the columns of the condition and if no
    roll-up went past the end of the generation.
    """
    sql = f"SELECT count(*) FROM {source} WHERE {where} AND ts IS NOT NULL AND {at.requests}"
    minutes = await load_minutes(asker) if is_in_minutes and not at.low else None
    if minutes and all(last <= at.high.get(writer, 0) for writer, last in minutes.until.items()):
        timeless = f"SELECT count(*) FROM events WHERE {where} AND ts IS NULL AND {at.requests}"
        arrived = minutes.arrived(0, where, at.requests)
        sql = f"SELECT coalesce(sum(events), 0) - ({timeless}) FROM {arrived}"
    ((total,),) = (await asker.query(sql, params)).rows
    return int(total)


def _objects(row: Json) -> Json:
    return {
        name: msgspec.json.decode(row[name]) if row[name] else {} for name in ("attrs", "detail")
    }


def _encode(place: _Place) -> str:
    return base64.urlsafe_b64encode(msgspec.msgpack.encode(place)).decode().rstrip("=")


def _decode(cursor: str | None) -> _Place | None:
    if cursor is None:
        return None
    try:
        place = msgspec.msgpack.decode(
            base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)), type=_Place
        )
        numbers = [*place.low.values(), *place.high.values(), place.seq, place.idx]
        if min(numbers) >= 0 and len(place.high) <= MAX_WRITERS and abs(place.at_ns) < 2**62:
            return place
    except (ValueError, msgspec.DecodeError):
        pass
    raise ToolRefused(
        "bad_cursor", "the cursor is not valid; leave it out to start over", status=404
    )
