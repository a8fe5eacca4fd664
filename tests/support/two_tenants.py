"""An Echo database with the rows of two tenants and of the operator; what is not ours is marked."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

from tests.support.stores import open_test_store, writing

from ingero.echo.store.api import QueryFailed, QueryLimits, QueryResult
from ingero.echo.store.sql import run_user_sql
from ingero.storage.events.store import EventStore

OURS, THEIRS = "ours", "theirs"
CANARY = "canary"  # stands in everything that user SQL must not show
LIMITS = QueryLimits(seconds=5)
_ROWS = 3000
SEED = f"""
INSERT INTO events (seq, idx, ts, received_ts, cluster_id, node_id, metric_name, kind, value_double,
  cumulative_value, attrs)
SELECT range, 0, ts, ts, cluster, node, 'm', 'gauge', range, range, json_object('v', node)
FROM (SELECT range, make_timestamp(range * 1000000) AS ts, range % 3 = 0 AS own,
  if(own, '{OURS}', '{THEIRS}') AS cluster, if(own, (range % 10)::VARCHAR, '{CANARY}' || range)
  AS node FROM range({_ROWS}));
INSERT INTO nccl_ops (seq, idx, cluster_id, node_id, op_type, bytes)
  SELECT seq, 0, cluster_id, node_id, node_id, seq FROM events;
INSERT INTO nccl_ops (seq, idx, cluster_id, node_id, comm_id_hash, comm_seq, op_type, nranks)
  SELECT seq, 1, cluster_id, node_id, cluster_id, 0, 'AllReduce', 2
  FROM events WHERE seq IN (1, 2, 3, 6);
INSERT INTO verdicts (seq, idx, cluster_id, node_id, evidence)
  SELECT seq, 0, cluster_id, node_id, node_id FROM events LIMIT 50;
INSERT INTO causal_chains (seq, idx, cluster_id, node_id, summary)
  SELECT seq, 0, cluster_id, node_id, node_id FROM events LIMIT 50;
INSERT INTO node_metric_parts (cluster_id, node_id, metric_name, count, received_ts)
  SELECT cluster_id, node_id, 'm', 1, received_ts FROM events LIMIT 50;
INSERT INTO arrivals (cluster_id, node_id, metric_name, events)
  SELECT cluster_id, node_id, 'm', 1 FROM events LIMIT 50;
INSERT INTO straggler_events (seq, idx, cluster_id, node_id, score)
  SELECT seq, 0, cluster_id, node_id, node_id FROM events LIMIT 50;
INSERT INTO audit_log (request_id, key_name) VALUES ('{CANARY}-request', '{CANARY}-key');
INSERT INTO meta VALUES ('{CANARY}', 1);
"""


class TwoTenants:
    """Runs user SQL as the store process does."""

    def __init__(self, store: EventStore, folder: Path) -> None:
        self.store = store
        self.folder = folder

    def ask(self, sql: str, clusters: list[str] | None) -> tuple[str, str]:
        """Return `ok` and the result as text, or the code and message of the error."""
        with closing(self.store.cursor()) as cursor:
            return _outcome(lambda: run_user_sql(cursor, sql, clusters, LIMITS))

    @contextmanager
    def session(self, clusters: list[str] | None) -> Iterator[Callable[[str], tuple[str, str]]]:
        """Ask many questions with one scope."""
        yield lambda sql: self.ask(sql, clusters)


def _outcome(ask: Callable[[], QueryResult]) -> tuple[str, str]:
    try:
        found = ask()
    except QueryFailed as error:
        return error.code, str(error)
    return "ok", f"{found.columns} {found.types} {found.rows}"


@contextmanager
def two_tenants(folder: Path) -> Iterator[TwoTenants]:
    """Open a new database in `folder`."""
    store = open_test_store(folder / "echo.db", 512 << 20, 1)
    with writing(store) as connection:
        connection.execute(SEED)
    store.checkpoint()
    yield TwoTenants(store, folder)
    store.close()


def keep_only_ours(store: EventStore, tables: Iterable[str]) -> None:
    """Write the tables anew without the rows of others: deleted rows leave their values behind."""
    with writing(store) as connection:
        for table in tables:
            connection.execute(
                f"CREATE TEMP TABLE kept AS FROM {table} WHERE cluster_id = '{OURS}'; "
                f"DELETE FROM {table}; INSERT INTO {table} FROM kept; DROP TABLE kept"
            )
            store.checkpoint()
