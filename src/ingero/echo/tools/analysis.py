"""The tool that runs a user's own SQL."""

from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta

from ingero.echo.sql_guard import MAX_SQL_BYTES
from ingero.echo.store.api import QueryLimits
from ingero.echo.tools.asker import Asker, question

ANSWER_BYTES: Final = 4 << 20
SECONDS: Final = 10.0


class AnalysisQuestion(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One SELECT."""

    sql: Annotated[
        str, Meta(description="One SELECT or EXPLAIN, DuckDB dialect.", max_length=MAX_SQL_BYTES)
    ]
    limit: Annotated[
        int, Meta(description="Maximum number of rows to return.", ge=1, le=10_000)
    ] = 1000


class AnalysisAnswer(msgspec.Struct, kw_only=True):
    """`rows` in the order of `columns`; times are text in UTC."""

    columns: list[str]
    types: list[str]
    rows: list[list[Any]]
    truncated: bool
    elapsed_ms: float
    notes: list[str] = []


@question
async def run_analysis(asker: Asker, asked: AnalysisQuestion) -> AnalysisAnswer:
    """Run one read-only SELECT (DuckDB dialect) over the clusters that this token may see.

    Tables: events, nccl_ops, collective_lateness, verdicts, causal_chains, node_metrics (per
    minute), counter_rates and counter_steps (growth of running totals). `DESCRIBE events`
    lists its columns; the schema resource explains them. Write table names without a schema prefix,
    aggregate before you list rows, and filter by received_ts to stay fast. Limits: 10 s and 4 MiB.
    """
    clusters = None if asker.key.clusters is None else sorted(asker.key.clusters)
    asker.entry.clusters.extend(clusters or [])
    limits = QueryLimits(rows=asked.limit, size_bytes=ANSWER_BYTES, seconds=SECONDS)
    found = await asker.user_sql(asked.sql, clusters, limits)
    notes = (
        ["the result was cut off: aggregate, filter by received_ts or node_id, or raise limit"]
        if found.truncated
        else []
    )
    return AnalysisAnswer(
        columns=found.columns,
        types=found.types,
        rows=found.rows,
        truncated=found.truncated,
        elapsed_ms=round(found.elapsed_ms, 3),
        notes=notes,
    )
