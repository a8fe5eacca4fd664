"""Hypothesis strategies for SQL that tries to read more than its caller may."""

from typing import Final

from hypothesis import strategies as st

from ingero.echo.sql_functions import IN_EXPRESSIONS, IN_FROM

COLUMNS: Final = ("cluster_id", "node_id", "attrs", "metric_name", "seq", "value_double", "ts", "*")
TABLES: Final = (
    "events",
    "EVENTS",
    '"events"',
    "nccl_ops",
    "verdicts",
    "causal_chains",
    "node_metrics",
    "counter_rates",
    "counter_steps",
    "collective_lateness",
)
# what a caller with a scope must not read
FORBIDDEN: Final = (
    "main.events",
    "echo.main.events",
    "temp.events",
    "audit_log",
    "meta",
    "node_metric_parts",
    "arrivals",
    "straggler_events",
    "applied_requests",
    "duckdb_tables",
    "duckdb_columns",
    "information_schema.tables",
    "pg_catalog.pg_class",
    "sqlite_master",
    "'echo.db'",
    "events AT (VERSION => 1)",
)
READERS: Final = (
    "histogram('echo.main.events', node_id)",
    "histogram('echo.main.events', concat_ws('|', cluster_id, node_id), technique := 'sample')",
    "histogram_values('echo.main.events', node_id)",
    "query('SELECT * FROM echo.main.events')",
    "query_table('echo.main.events')",
    "seq_scan('echo.main.events')",
    "duckdb_tables()",
    "pragma_storage_info('events')",
    "read_csv('echo.db')",
    "glob('*')",
)
CTES: Final = ("x", "events", "audit_log", "AUDIT_LOG", "duc\u212adb_tables", "meta", "r")
TYPES: Final = ("INTEGER", "DOUBLE", "TIMESTAMP", "JSON", "UUID", "DATE", "BOOLEAN", "INT[]")
_FUNCTIONS: Final = sorted(name for name in IN_EXPRESSIONS if name[0].isalpha())
_COMPARISONS: Final = (
    "=",
    "<",
    ">",
    "<>",
    "LIKE",
    "~",
    "IS DISTINCT FROM",
    "->>",
    "||",
    "+",
    "AND",
)

names = st.sampled_from(CTES).map(lambda name: f'"{name}"')
constants = st.sampled_from(
    ("1", "'x'", "NULL", "true", "'2020-01-01'", "[1, 2]", "{'a': 1}", "-1")
)
columns = st.sampled_from(COLUMNS[:-1])


def expressions(depth: int) -> st.SearchStrategy[str]:
    """Scalars, casts, calls, windows, lambdas and subqueries."""
    if depth <= 0:
        return columns | constants
    inner = expressions(depth - 1)
    pairs = st.tuples(inner, st.sampled_from(_COMPARISONS), inner)
    function = st.sampled_from(_FUNCTIONS)
    return st.one_of(
        columns,
        inner,
        st.tuples(inner, st.sampled_from(TYPES)).map(lambda t: f"CAST({t[0]} AS {t[1]})"),
        columns.map(lambda name: f"{name}::INTEGER"),
        pairs.map(lambda t: f"({t[0]} {t[1]} {t[2]})"),
        st.tuples(function, inner).map(lambda t: f"{t[0]}({t[1]})"),
        st.tuples(function, inner, inner).map(lambda t: f"{t[0]}({t[1]}, {t[2]})"),
        st.tuples(function, inner).map(lambda t: f"{t[0]}({t[1]}) OVER (ORDER BY {t[1]})"),
        st.tuples(inner, inner, inner).map(
            lambda t: f"CASE WHEN {t[0]} THEN {t[1]} ELSE {t[2]} END"
        ),
        inner.map(lambda text: f"list_transform([{text}], y -> {text})"),
        st.sampled_from(("COLUMNS(*)", "COLUMNS('.*id')", "getvariable('x')", "current_catalog")),
        queries(depth - 1).map(lambda query: f"({query} LIMIT 1)"),
        queries(depth - 1).map(lambda query: f"EXISTS ({query})"),
    )


def sources(depth: int) -> st.SearchStrategy[str]:
    """What may stand after FROM, allowed or not."""
    plain = st.sampled_from(TABLES) | st.sampled_from(TABLES) | names
    hostile = st.sampled_from(FORBIDDEN) | st.sampled_from(READERS)
    calls = st.tuples(st.sampled_from(sorted(IN_FROM)), constants).map(lambda t: f"{t[0]}({t[1]})")
    if depth <= 0:
        return plain | hostile | calls
    inner = sources(depth - 1)
    join = st.sampled_from(
        (", ", " CROSS JOIN ", " POSITIONAL JOIN ", ", LATERAL ", " NATURAL JOIN ")
    )
    return st.one_of(
        plain,
        plain,
        inner,
        st.tuples(inner, join, inner).map(lambda t: f"{t[0]}{t[1]}{t[2]}"),
        st.tuples(inner, inner).map(lambda t: f"{t[0]} JOIN {t[1]} USING (node_id)"),
        plain.map(lambda table: f"{table} TABLESAMPLE 50%"),
        plain.map(lambda table: f"(SUMMARIZE {table})"),
        plain.map(lambda table: f"(PIVOT {table} ON node_id IN ('1', '2') USING count(*))"),
        queries(depth - 1).map(lambda query: f"({query})"),
    )


def queries(depth: int) -> st.SearchStrategy[str]:
    """SELECT with conditions, groups and set operations."""
    tail = st.sampled_from(("", " ORDER BY ALL", " LIMIT 3", " GROUP BY ALL", " QUALIFY true"))
    select = st.tuples(expressions(depth) | st.just("*"), sources(depth))
    simple = st.tuples(select, tail).map(lambda t: f"SELECT {t[0][0]} FROM {t[0][1]}{t[1]}")
    where = st.tuples(select, expressions(depth)).map(
        lambda t: f"SELECT {t[0][0]} FROM {t[0][1]} WHERE {t[1]}"
    )
    if depth <= 0:
        return simple | where
    inner = queries(depth - 1)
    union = st.sampled_from((" UNION ALL ", " EXCEPT ", " UNION ALL BY NAME "))
    return st.one_of(
        simple,
        where,
        where,
        st.tuples(inner, union, inner).map(lambda t: f"({t[0]}){t[1]}({t[2]})"),
        st.tuples(names, inner, inner).map(lambda t: f"WITH {t[0]} AS ({t[1]}) {t[2]}"),
        st.tuples(names, inner, inner).map(
            lambda t: f"WITH RECURSIVE {t[0]} AS ({t[1]} UNION {t[2]}) FROM {t[0]} LIMIT 5"
        ),
    )


def statements(depth: int = 2) -> st.SearchStrategy[str]:
    """Whole statements: mostly queries."""
    prefix = st.sampled_from(("", "", "", "", "EXPLAIN ", "SUMMARIZE ", "DESCRIBE "))
    return st.tuples(prefix, queries(depth)).map("".join)
