"""What every question works with: the store, the caller, the window and the notes of the answer."""

import calendar
import functools
import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Annotated, Any, Final, TypeVar

import msgspec
import numpy as np
from msgspec import Meta

from ingero.config.rates import RateTable
from ingero.contract.api_paths import ECHO_WHOAMI
from ingero.core.units import parse_duration_s
from ingero.echo.audit import Entry
from ingero.echo.store.api import (
    ColumnResult,
    PackedColumn,
    QueryFailed,
    QueryLimits,
    QueryResult,
    StoreApi,
    StoreRestarting,
    TooManyQueries,
)
from ingero.echo.store.turns import Turns
from ingero.echo.tools.covered import Minutes
from ingero.errors import StoreError, Unavailable
from ingero.transport.bearer import Key
from ingero.transport.tools.tool import ToolRefused

MAX_ANSWER_BYTES: Final = 1 << 20
QUESTION_SECONDS: Final = 10.0
MAX_CLUSTERS_NAMED: Final = 20
ALL_TIME: Final = "all"
PREFIX: Final = "fleet.cluster."
TIME_PATTERN: Final = (
    r"^((?:19|20|21)[0-9]{2})-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3]):([0-5][0-9]):([0-5][0-9])"
    r"(\.[0-9]{1,9})?(Z|[+-][01][0-9]:[0-5][0-9])?(?![\s\S])"
)
_STATUS: Final = {
    "sql_refused": 400,
    "bad_sql": 400,
    "timeout": 504,
    "out_of_memory": 400,
    "unavailable": 503,
}

_ONE_CLUSTER: Final = "Cluster to look at. May be left out if this token sees only one."
ClusterId = Annotated[str, Meta(description=_ONE_CLUSTER, max_length=256)] | None
Window = Annotated[
    str,
    Meta(
        description="How far back to look, by time of arrival: 10m, 1h, 2d, or all.",
        pattern=r"^(all|([0-9]+(\.[0-9]+)?(ms|s|m|h|d|w))+)(?![\s\S])",
        max_length=32,
    ),
]
Limit = Annotated[int, Meta(description="Maximum number of rows to return.", ge=1, le=1000)]
Json = dict[str, Any]
Result = TypeVar("Result")


class Asked(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The parameters of most questions."""

    cluster_id: ClusterId = None
    window: Window = "1h"


class Answered(msgspec.Struct, kw_only=True):
    """The fields of most answers.

    Read `notes` first: they state what is missing and how to narrow the question.
    """

    cluster_id: str
    window: str
    truncated: bool = False
    notes: list[str] = []


@dataclass(slots=True)
class Asker:
    """One caller with one question."""

    store: StoreApi
    key: Key
    rates: RateTable
    entry: Entry = field(default_factory=lambda: Entry(""))
    now_s: Callable[[], float] = time.time
    turns: Turns = field(default_factory=Turns)
    minutes: Minutes | None = None  # read once, so all statements of a question agree on them

    def since_us(self, window: str) -> int:
        """Return the start of the window in microseconds, or 0 for `all`."""
        if window == ALL_TIME:
            return 0
        try:
            seconds = parse_duration_s(window)
        except ValueError as error:
            raise ToolRefused("bad_argument", f"window: {error}") from None
        return max(0, int((self.now_s() - seconds) * 1e6))

    async def cluster(self, wanted: str | None, window: str) -> str:
        """Return the cluster to answer for; refuse one outside the caller's scope."""
        if wanted is not None:
            self._note(wanted)
            if not self.key.may_see(wanted):
                raise ToolRefused(
                    "tenant_scoped_bearer_refused",
                    f"this token may not see cluster {wanted!r}; {ECHO_WHOAMI} lists what it may "
                    "see",
                    status=403,
                )
            return wanted
        names = (
            sorted(self.key.clusters)
            if self.key.clusters is not None
            else await self._known(window)
        )
        if len(names) == 1:
            self._note(names[0])
            return names[0]
        if not names:
            raise ToolRefused(
                "no_data", f"nothing arrived in the window {window}; try a longer one", status=404
            )
        some = tuple(names[:MAX_CLUSTERS_NAMED])
        listed = ", ".join(some) + (", …" if len(names) > len(some) else "")
        raise ToolRefused("cluster_required", f"choose a cluster_id: {listed}", choices=some)

    def _note(self, cluster: str) -> None:
        if cluster not in self.entry.clusters:
            self.entry.clusters.append(cluster)

    async def _known(self, window: str) -> list[str]:
        sql = (
            "SELECT DISTINCT cluster_id FROM events WHERE received_ts >= make_timestamp($1) "
            "ORDER BY 1 LIMIT 100"
        )
        return [row[0] for row in (await self.query(sql, [self.since_us(window)])).rows]

    async def query(self, sql: str, params: list[Any], rows: int = 1000) -> QueryResult:
        """Run one of our own statements."""
        limits = self._limits(rows)
        return await self._in_turn(lambda: self.store.query(sql, params, limits))

    async def columns(self, sql: str, params: list[Any], rows: int) -> dict[str, "Column"]:
        """Run one of our own statements and return columns for arithmetic."""
        limits = self._limits(rows)
        return unpack(await self._in_turn(lambda: self.store.columns(sql, params, limits)))

    async def user_sql(
        self, sql: str, clusters: list[str] | None, limits: QueryLimits
    ) -> QueryResult:
        """Run the caller's own statement over the rows of `clusters`, or over all for None."""
        return await self.turns.run_user_sql(
            self.key.digest, lambda: self.store.user_sql(sql, clusters, limits)
        )

    async def _in_turn(self, ask: Callable[[], Awaitable[Result]]) -> Result:
        return await self.turns.run(self.key.digest, ask)

    def _limits(self, rows: int) -> QueryLimits:
        return QueryLimits(rows=rows, size_bytes=MAX_ANSWER_BYTES, seconds=QUESTION_SECONDS)


@dataclass(frozen=True, slots=True)
class Column:
    """An array; with `values` it holds indexes into them, -1 for none."""

    data: np.ndarray[Any, Any]
    values: list[str] | None = None


def unpack(result: ColumnResult) -> dict[str, Column]:
    """Return the arrays of a result, in the bytes that their numbers need; nobody may write."""
    return {
        name: Column(_unpacked(packed, result.rows), packed.values)
        for name, packed in result.columns.items()
    }


def _unpacked(packed: PackedColumn, rows: int) -> np.ndarray[Any, Any]:
    values = np.frombuffer(packed.data, packed.kind)
    return values if len(values) == rows else np.broadcast_to(values[0], rows)


def records(result: QueryResult) -> list[Json]:
    """Return rows as mappings by column name."""
    return [dict(zip(result.columns, row, strict=True)) for row in result.rows]


def iso(seconds: float) -> str:
    """Return Unix seconds as text in UTC."""
    return (
        datetime.fromtimestamp(seconds, UTC)
        .isoformat(timespec="milliseconds")
        .replace("+00:00", "Z")
    )


def unix_ns(moment: str | float) -> int:
    """Return the nanoseconds of a time that matches TIME_PATTERN, or of Unix seconds.

    30 February counts as 2 March.
    """
    if isinstance(moment, float | int):
        return round(moment * 1e6) * 1000
    match = re.search(TIME_PATTERN, moment)
    assert match is not None, "the schema let it through"
    seconds = calendar.timegm(tuple(int(match[i]) for i in range(1, 7)))
    if match[8] not in (None, "Z"):
        seconds -= int(match[8][0] + "1") * (int(match[8][1:3]) * 3600 + int(match[8][4:6]) * 60)
    return seconds * 10**9 + int((match[7] or ".0")[1:].ljust(9, "0"))


QuestionType = TypeVar("QuestionType")
AnswerType = TypeVar("AnswerType", bound=msgspec.Struct)


def question(
    answer: Callable[[Asker, QuestionType], Awaitable[AnswerType]],
) -> Callable[[Asker, QuestionType], Awaitable[AnswerType]]:
    """Turn errors of the store into refusals with a next step; count rows for the audit trail."""

    name = PREFIX + answer.__name__

    @functools.wraps(answer)
    async def asked(asker: Asker, wanted: QuestionType) -> AnswerType:
        asker.entry.tool = name
        try:
            found = await answer(asker, wanted)
        except QueryFailed as error:
            if error.code == "out_of_memory" and not hasattr(
                wanted, "sql"
            ):  # our own queries are small, so another one used up the memory
                raise ToolRefused(
                    "store_restarting", "the store process is restarting; try again", 503, 2
                ) from None
            raise ToolRefused(error.code, str(error), _STATUS.get(error.code, 400)) from None
        except StoreRestarting as error:
            raise ToolRefused(
                "store_restarting", str(error), 503, max(1, round(error.retry_after_s))
            ) from None
        except TooManyQueries as error:
            raise ToolRefused(
                "too_many_queries", str(error), error.status, error.retry_after_s
            ) from None
        except (StoreError, Unavailable) as error:
            raise ToolRefused("store_failed", str(error), 503, 5) from None
        lists = (getattr(found, field) for field in found.__struct_fields__ if field != "notes")
        rows = next((value for value in lists if isinstance(value, list)), [])
        asker.entry.tool, asker.entry.rows = name, len(rows)
        return found

    return asked
