"""SQL of a stranger on a recording: an answer or a refusal, and nothing changes or leaks."""

import sqlite3
from functools import cache
from pathlib import Path

from tests.support.fuzzing import folder, worded
from tests.support.two_tenants import CANARY

from ingero.errors import IngeroError
from ingero.sim.samples import write_samples
from ingero.storage.sqlite_guard import QueryLimits, run_query

LIMITS = QueryLimits(timeout_s=0.5, max_rows=50)
WORDS = (
    *(
        "SELECT FROM WHERE ( ) , * AND OR NOT AS WITH RECURSIVE UNION ALL EXCEPT JOIN ON GROUP BY "
        "ORDER LIMIT OVER EXISTS IN CASE WHEN THEN END CAST = < > || -> ->> + - ; -- /* */ EXPLAIN "
        "QUERY PLAN VALUES TABLE CREATE TEMP VIEW TRIGGER INSERT INTO ATTACH DETACH PRAGMA UPDATE "
        "DELETE DROP VACUUM REINDEX ANALYZE BEGIN COMMIT SAVEPOINT ? x y 1 -1 'x' NULL DATABASE "
        "events sessions causal_chains sqlite_master sqlite_schema timestamp duration comm op id "
        "pragma_table_info('events') pragma_database_list pragma_journal_mode('wal') json_each "
        "json_tree load_extension('x') readfile('other.db') writefile('a','b') edit('x') fts5 "
        "printf('%.*c',9,'x') replace(comm,'a','b') instr(comm,'a') trim(comm,'a') randomblob(9) "
        "zeroblob(9) group_concat(comm) count(*) hex(x) char(9) main. temp. database_list "
        "writable_schema journal_mode sqlite_dbpage dbstat"
    ).split(),
    "'other.db'", "'file:other.db?mode=rw'", "VACUUM INTO 'copy.db'", '"other.db"',
    "ATTACH 'other.db' AS o",
)  # fmt: skip


@cache
def _trace() -> Path:
    (folder() / "samples").mkdir()
    path = write_samples(folder() / "samples")[0]
    with sqlite3.connect(folder() / "other.db") as other:
        other.execute(f"CREATE TABLE secrets AS SELECT '{CANARY}' AS word")
    other.close()
    return path


def _state(trace: Path) -> list[tuple[str, int, int]]:
    files = [path for path in (*folder().iterdir(), *trace.parent.iterdir()) if path.is_file()]
    return sorted((path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in files)


def fuzz(data: bytes) -> None:
    """The first byte chooses between a text and a text made of words."""
    if not data:
        return
    sql = worded(data[1:], WORDS) if data[0] % 2 else data[1:].decode("utf-8", "replace")
    trace = _trace()
    before = _state(trace)
    try:
        found = run_query(trace, sql, LIMITS)
        assert len(found.rows) <= LIMITS.max_rows
        text = f"{found.columns} {found.rows}"
    except IngeroError as error:
        text = str(error)
    assert CANARY in sql or CANARY not in text, sql
    assert _state(trace) == before, sql
