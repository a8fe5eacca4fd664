"""Growth of running totals: memory copies, kernel launches, memory fragmentation.

The growth of a series is the sum of its increases from point to point. After a restart of the
sender, the new total counts from zero. Without a restart, the growth is the largest minus the
smallest value of the window. Totals themselves are never summed.
"""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from ingero.contract import names
from ingero.echo.tools.asker import Answered, Asked, Asker, Json, Limit, question, records
from ingero.echo.tools.minutes import arrived_metrics

MEMCPY_TOTALS: Final = ("gpu.memcpy.bytes_total", names.MEMCPY_BYTES_TOTAL)
MEMFRAG_TOTAL: Final = "gpu.memfrag.ioctl_event_total"
# of other agents, and of ours
FRAGMENTATION: Final = ("gpu.memory.fragmentation_estimate", names.MEMFRAG_RATIO)
# threads per block, grid sizes: any histogram of this family
LAUNCH_HISTOGRAMS: Final = "gpu.kernel."
LARGEST_TOTAL: Final = 2**63  # no counter of a machine is larger; one value must not spoil a sum
_SERIES: Final = "node_id, rank, job_id, metric_name, attrs"
# Points are ordered by the hash of their series: to sort or join texts takes three times as long,
# and that two of a million series share a number of 64 bits happens once in 40 million answers.
# Series of one node and kind have one `place`, and among them those that a rate is shared by are
# `alike`.
_STEPS: Final = f"""WITH points AS NOT MATERIALIZED
 (SELECT hash({_SERIES}) AS series, node_id, rank, attrs, epoch_ns(ts) AS at_ns,
    cumulative_value AS total
  FROM events WHERE cluster_id = $1 AND received_ts >= make_timestamp($2)
    AND list_contains($3::VARCHAR[], metric_name)
    AND abs(cumulative_value) < {LARGEST_TOTAL} AND ts IS NOT NULL),
named AS (SELECT series, any_value(node_id) AS node_id, any_value(rank) AS rank,
    any_value(attrs) AS attrs FROM points GROUP BY series),
kinds AS (SELECT *, {{kind}} AS kind FROM named),
series AS MATERIALIZED (SELECT *, dense_rank() OVER (ORDER BY node_id, kind) AS place,
    dense_rank() OVER (ORDER BY rank, attrs) AS alike FROM kinds),
steps AS (SELECT series, total, total - lag(total) OVER one AS gain,
    (at_ns - lag(at_ns) OVER one) / 1e9 AS s
  FROM points WINDOW one AS (PARTITION BY series ORDER BY at_ns)),
growth AS (SELECT series, CASE WHEN gain < 0 THEN total ELSE gain END AS step, s FROM steps
  WHERE gain IS NOT NULL)"""
_GROWN: Final = """any_value(node_id) AS node_id, any_value(kind) AS kind, sum(step) AS growth,
  sum(step) / nullif(sum(s) / count(DISTINCT alike), 0) AS per_s"""
_OF_SERIES: Final = "JOIN series USING (series) GROUP BY place ORDER BY growth DESC, place"
_TOTALS: Final = f"""{_STEPS},
per AS (SELECT series, sum(step) AS step, sum(s) AS s FROM growth GROUP BY series)
SELECT {_GROWN} FROM per {_OF_SERIES}"""
_DIRECTION: Final = (
    f"""coalesce(attrs->>'$."{names.MEMCPY_DIRECTION}"', attrs->>'$.direction', 'unknown')"""
)
_MEMCPY: Final = f"""{_STEPS.format(kind=_DIRECTION)} SELECT {_GROWN},
  quantile_cont(step / s, [0.5, 0.99, 1.0]) FILTER (s > 0) AS rates
FROM growth {_OF_SERIES}"""
_LAUNCHES: Final = _TOTALS.format(kind="NULL")
_COMMAND: Final = """coalesce(attrs->>'$.cmd', attrs->>'$."ingero.memfrag.cmd"', 'unknown')"""
_MEMFRAG: Final = _TOTALS.format(kind=_COMMAND)
_NO_RATES: Final = (None, None, None)
_LATEST: Final = """SELECT node_id, metric_name, arg_max(coalesce(value_double, value_int), ts)
FROM events
WHERE cluster_id = $1 AND received_ts >= make_timestamp($2)
  AND list_contains($3::VARCHAR[], metric_name) AND node_id IS NOT NULL
GROUP BY 1, 2 ORDER BY 1, 2"""
_HISTOGRAMS: Final = """SELECT metric_name, node_id, count(*) AS points,
  arg_max(detail, ts) AS detail
FROM events
WHERE cluster_id = $1 AND received_ts >= make_timestamp($2) AND kind = 'histogram'
  AND starts_with(metric_name, $3)
GROUP BY 1, 2 ORDER BY 1, 2"""


class MemcpyQuestion(Asked, kw_only=True):
    """How much the GPUs copy."""

    limit: Limit = 50


class MemcpyDirection(msgspec.Struct):
    """Copies of one node in one direction: h2d, d2h, d2d, h2h or unknown."""

    node_id: str | None
    direction: str
    bytes: int
    bytes_per_s: float | None
    p50_bytes_per_s: float | None
    p99_bytes_per_s: float | None
    max_bytes_per_s: float | None


class MemcpyAnswer(Answered, kw_only=True):
    """`totals` sums the nodes by direction; `copies` has the busiest first."""

    copies: list[MemcpyDirection]
    totals: dict[str, int]


@question
async def memcpy_bandwidth_summary(asker: Asker, asked: MemcpyQuestion) -> MemcpyAnswer:
    """Bytes copied by the GPUs of each node and direction, with rates and percentiles.

    A node that copies far more between host and device than its peers feeds its GPUs too slowly or
    spills memory.
    """
    cluster = await asker.cluster(asked.cluster_id, asked.window)
    found = records(
        await asker.query(
            _MEMCPY, [cluster, asker.since_us(asked.window), list(MEMCPY_TOTALS)], 10_000
        )
    )
    totals: dict[str, int] = {}
    for row in found:
        totals[row["kind"]] = _count(totals.get(row["kind"], 0) + row["growth"])
    copies = [
        MemcpyDirection(
            row["node_id"],
            row["kind"],
            _count(row["growth"]),
            *map(_rate, (row["per_s"], *(row["rates"] or _NO_RATES))),
        )
        for row in found[: asked.limit]
    ]
    cut, notes = _cut(len(found), asked.limit, MEMCPY_TOTALS[0])
    return MemcpyAnswer(
        cluster_id=cluster,
        window=asked.window,
        truncated=cut,
        notes=notes,
        copies=copies,
        totals=totals,
    )


class LaunchQuestion(Asked, kw_only=True):
    """How many kernels are launched."""

    limit: Limit = 50


class NodeLaunches(msgspec.Struct):
    """Kernel launches of one node in the window."""

    node_id: str | None
    launches: int
    launches_per_s: float | None


class LaunchHistogram(msgspec.Struct):
    """A histogram of launches on one node: the newest buckets that it sent."""

    metric_name: str
    node_id: str | None
    points: int
    bounds: list[float]
    counts: list[int]


class LaunchAnswer(Answered, kw_only=True):
    """`histograms` holds threads per block and grid sizes if agents send them."""

    nodes: list[NodeLaunches]
    total: int
    histograms: list[LaunchHistogram]


@question
async def kernel_launch_summary(asker: Asker, asked: LaunchQuestion) -> LaunchAnswer:
    """Kernel launches per node and their rate, with threads per block and grid sizes if sent.

    A node that launches fewer kernels per second than its peers in the same job is slowed down by
    its host.
    """
    cluster = await asker.cluster(asked.cluster_id, asked.window)
    since_us = asker.since_us(asked.window)
    found = records(
        await asker.query(_LAUNCHES, [cluster, since_us, [names.KERNEL_LAUNCH_TOTAL]], 10_000)
    )
    shapes = records(
        await asker.query(_HISTOGRAMS, [cluster, since_us, LAUNCH_HISTOGRAMS], asked.limit + 1)
    )
    cut, notes = _cut(max(len(found), len(shapes)), asked.limit, names.KERNEL_LAUNCH_TOTAL)
    return LaunchAnswer(
        cluster_id=cluster,
        window=asked.window,
        truncated=cut,
        notes=notes,
        nodes=[
            NodeLaunches(r["node_id"], _count(r["growth"]), _rate(r["per_s"]))
            for r in found[: asked.limit]
        ],
        total=_count(sum(row["growth"] for row in found)),
        histograms=[_histogram(row) for row in shapes[: asked.limit]],
    )


_LATEST_FIELDS: Final = {
    **dict.fromkeys(FRAGMENTATION, "fragmentation"),
    names.MEMFRAG_ALLOCATED: "allocated_bytes",
    names.MEMFRAG_RESERVED: "reserved_bytes",
    names.MEMFRAG_LARGEST_FREE: "largest_free_bytes",
}


class MemfragQuestion(Asked, kw_only=True):
    """Where GPU memory is fragmented."""

    limit: Annotated[int, Meta(ge=1, le=1000, description="Maximum number of rows to return.")] = 20


class MemfragCommand(msgspec.Struct):
    """Driver calls of one kind."""

    cmd: str
    events: int


class MemfragNode(msgspec.Struct):
    """Driver calls of one node that grow or move GPU memory, and its latest fragmentation.

    `fragmentation` is the share of the reserved memory that is free but not in one piece. Bytes are
    those that the node's processes hold.
    """

    node_id: str | None
    events: int
    events_per_s: float | None
    commands: list[MemfragCommand]
    fragmentation: float | None
    allocated_bytes: int | None
    reserved_bytes: int | None
    largest_free_bytes: int | None


class MemfragAnswer(Answered, kw_only=True):
    """The node with the most driver calls first; without them, the most fragmented one."""

    nodes: list[MemfragNode]
    total: int


@question
async def memfrag_hotspots(asker: Asker, asked: MemfragQuestion) -> MemfragAnswer:
    """Nodes with fragmented GPU memory: driver calls, memory held, and the largest free block.

    A rank that stalls at regular intervals is often on the node at the top of this list.
    """
    cluster = await asker.cluster(asked.cluster_id, asked.window)
    since_us = asker.since_us(asked.window)
    sent = await arrived_metrics(asker, cluster, since_us, (MEMFRAG_TOTAL, *_LATEST_FIELDS))
    totals, gauges = set(sent) & {MEMFRAG_TOTAL}, sorted(set(sent) & set(_LATEST_FIELDS))
    rows, latest = [], []
    if totals:
        rows = records(await asker.query(_MEMFRAG, [cluster, since_us, list(totals)], 10_000))
    if gauges:
        latest = (await asker.query(_LATEST, [cluster, since_us, gauges], 10_000)).rows
    nodes: dict[str | None, MemfragNode] = {}
    for node_id, metric, value in latest:
        kind = _LATEST_FIELDS[metric]
        known = nodes.setdefault(node_id, _nothing_of(node_id))
        setattr(known, kind, value if kind == "fragmentation" else int(value))
    for row in rows:
        node = nodes.setdefault(row["node_id"], _nothing_of(row["node_id"]))
        node.events = _count(node.events + row["growth"])
        node.events_per_s = _rate((node.events_per_s or 0.0) + (row["per_s"] or 0.0))
        node.commands.append(MemfragCommand(row["kind"], _count(row["growth"])))
    found = sorted(
        nodes.values(),
        key=lambda node: (-node.events, -(node.fragmentation or 0.0), node.node_id or ""),
    )
    cut, notes = _cut(len(found), asked.limit, MEMFRAG_TOTAL)
    return MemfragAnswer(
        cluster_id=cluster,
        window=asked.window,
        truncated=cut,
        notes=notes,
        nodes=found[: asked.limit],
        total=sum(node.events for node in found),
    )


def _nothing_of(node_id: str | None) -> MemfragNode:
    return MemfragNode(node_id, 0, None, [], None, None, None, None)


def _cut(found: int, limit: int, metric: str) -> tuple[bool, list[str]]:
    if not found:
        return False, [
            f"no growth of {metric} in the window, which takes two points of a series; try a "
            "longer window"
        ]
    return found > limit, [f"{found - limit} more rows; raise limit"] if found > limit else []


def _count(value: float) -> int:
    """Return a whole number that JSON can carry."""
    return min(int(value), LARGEST_TOTAL - 1)


def _rate(value: float | str | None) -> float | None:
    return round(value, 3) if isinstance(value, float | int) else None


def _histogram(row: Json) -> LaunchHistogram:
    detail = msgspec.json.decode(row["detail"]) if row["detail"] else {}
    bounds = [float(bound) for bound in detail.get("bounds", [])]
    counts = [int(count) for count in detail.get("counts", [])]
    return LaunchHistogram(row["metric_name"], row["node_id"], row["points"], bounds, counts)
