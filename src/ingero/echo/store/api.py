"""What the rest of Echo asks of the store process, and what it gets back."""

from dataclasses import dataclass, field
from typing import Any, Protocol

from ingero.errors import IngeroError, Unavailable


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryLimits:
    """Bounds of one query: an answer is cut at `rows` or `size_bytes`, the query ended after `seconds`."""

    rows: int = 1000
    size_bytes: int = 4 * 1024 * 1024
    seconds: float = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryResult:
    """Rows hold JSON values: times as ISO text in UTC with all digits, blobs as hex, NaN and infinities as text."""

    columns: list[str]
    types: list[str]
    rows: list[list[Any]]
    truncated: bool
    elapsed_ms: float


@dataclass(frozen=True, slots=True)
class PackedColumn:
    """The bytes of an array of `kind` i8 or f8; with `values` the array holds positions in them, -1 for none."""

    data: bytes
    kind: str
    values: list[str] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnResult:
    """An answer as columns, for arithmetic on many rows."""

    columns: dict[str, PackedColumn]
    rows: int
    truncated: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreStats:
    """State of the store process at its last report."""

    applied_seq: int
    rows: dict[str, int] = field(default_factory=dict)
    database_bytes: int = 0
    resident_bytes: int = 0
    oldest_received_s: float | None = None


class QueryFailed(IngeroError):
    """A query was refused or ended; `code` is sql_refused, bad_sql, timeout or out_of_memory."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


class StoreRestarting(Unavailable):
    """The store process is being replaced; nothing is lost, ask again after `retry_after_s`."""

    def __init__(self, reason: str, retry_after_s: float = 2.0) -> None:
        super().__init__(
            f"the store process is restarting ({reason}); nothing is lost, ask again in {retry_after_s:g} s"
        )
        self.retry_after_s = retry_after_s


class StoreApi(Protocol):
    """The store process as its parent sees it."""

    async def query(self, sql: str, params: list[Any], limits: QueryLimits) -> QueryResult:
        """One statement in a read-only transaction; raises QueryFailed or StoreRestarting."""
        ...

    async def columns(self, sql: str, params: list[Any], limits: QueryLimits) -> ColumnResult:
        """Like `query`, as columns."""
        ...

    async def user_sql(
        self, sql: str, clusters: list[str] | None, limits: QueryLimits
    ) -> QueryResult:
        """SQL of a stranger over the rows of `clusters`, of all for None; raises QueryFailed or StoreRestarting."""
        ...

    async def stats(self) -> StoreStats: ...

    async def wait_applied(self, sequence: int, timeout_s: float) -> None:
        """Return once everything up to `sequence` can be queried; raises Unavailable after `timeout_s`."""
        ...

    async def audit(self, rows: list[list[Any]]) -> None:
        """Append rows to `audit_log` in the order of its columns."""
        ...
