"""What the rest of Echo asks of the store process, and the types of its answers."""

from dataclasses import dataclass, field
from typing import Any, Protocol

from ingero.errors import IngeroError, Overloaded, Unavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryLimits:
    """Limits of one query.

    The result is cut at `rows` or `size_bytes`; the query ends after `seconds`.
    """

    rows: int = 1000
    size_bytes: int = 4 * 1024 * 1024
    seconds: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryResult:
    """Rows of JSON values.

    Times are ISO text in UTC with all digits, blobs are hex, NaN and infinities are text. With
    `ended_store` the query took so much memory that the store process is replaced.
    """

    columns: list[str]
    types: list[str]
    rows: list[list[Any]]
    truncated: bool
    elapsed_ms: float
    ended_store: bool = False


@dataclass(frozen=True, slots=True)
class PackedColumn:
    """The bytes of an array of `kind`: f8, or i1 to i8, whichever its numbers need.

    An array of one number stands for all rows. With `values` it holds indexes into them, -1 for
    none.
    """

    data: bytes
    kind: str
    values: list[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnResult:
    """A result as columns, for arithmetic on many rows."""

    columns: dict[str, PackedColumn]
    rows: int
    truncated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStats:
    """The state of the store process at its last report."""

    applied_seq: int
    rows: dict[str, int] = field(default_factory=dict)
    database_bytes: int = 0
    resident_bytes: int = 0
    buffer_bytes: int = 0  # the part of it that DuckDB manages, within a limit
    oldest_received_s: float | None = None


class QueryFailed(IngeroError):
    """A query was refused or failed.

    `code` is sql_refused, bad_sql, timeout, out_of_memory or unavailable.
    """

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class EndedStore(QueryFailed):
    """A query that failed so badly that the store process is replaced."""


class TooManyQueries(Overloaded):
    """A query must wait too long; `status` is 429 because of its own caller, 503 because of all."""

    def __init__(self, reason: str, retry_after_s: int, status: int) -> None:
        super().__init__(reason, retry_after_s)
        self.status = status


class StoreRestarting(Unavailable):
    """The store process is being replaced. No data is lost; retry after `retry_after_s`."""

    def __init__(self, reason: str, retry_after_s: float = 2.0) -> None:
        super().__init__(
            f"the store process is restarting ({reason}); no data is lost, retry in "
            f"{retry_after_s:g} s"
        )
        self.retry_after_s = retry_after_s


class StoreCrashed(StoreRestarting):
    """The store process, number `generation`, ended without saying why."""

    def __init__(self, reason: str, generation: int) -> None:
        super().__init__(reason)
        self.generation = generation


class StoreApi(Protocol):
    """The store process as its parent uses it."""

    async def query(self, sql: str, params: list[Any], limits: QueryLimits) -> QueryResult:
        """Run one statement in a read-only transaction; raise QueryFailed or StoreRestarting."""
        ...

    async def columns(self, sql: str, params: list[Any], limits: QueryLimits) -> ColumnResult:
        """Run one statement like `query`, and return columns."""
        ...

    async def user_sql(
        self, sql: str, clusters: list[str] | None, limits: QueryLimits
    ) -> QueryResult:
        """Run a user's SQL over the rows of `clusters`, or over all rows for None.

        Raises QueryFailed or StoreRestarting.
        """
        ...

    async def stats(self) -> StoreStats: ...

    async def wait_applied(self, sequence: int, timeout_s: float) -> None:
        """Wait until everything up to `sequence` can be queried; Unavailable after `timeout_s`."""
        ...

    async def audit(self, rows: list[list[Any]]) -> None:
        """Append rows to `audit_log` in the order of its columns."""
        ...
