"""Ranges of requests in order of arrival, each writer of the store by itself.

Requests of one writer are numbered as they arrive, but those of two writers cannot be compared. So
a place in what arrives has one number for each writer.
"""

from typing import Final

from ingero.echo.tools.asker import Asker
from ingero.echo.tools.minutes import load_minutes
from ingero.storage.events.numbering import NUMBER_SHIFT, stored_from

MAX_WRITERS: Final = 64  # in a cursor that somebody hands in
Places = dict[int, int]  # by writer: the number of a request in the tables
_APPLIED: Final = """SELECT coalesce(TRY_CAST(split_part(key, '/', 2) AS BIGINT), 0) AS writer,
  max(value) AS seq FROM meta WHERE key = 'applied_seq' OR key LIKE 'applied_seq/%' GROUP BY 1"""
_FIRST: Final = (
    f"SELECT first_seq >> {NUMBER_SHIFT}, min(first_seq) - 1 FROM {{arrived}} GROUP BY 1"
)


async def applied(asker: Asker) -> Places:
    """Return the last request of each writer."""
    rows = (await asker.query(_APPLIED, [])).rows
    return {int(writer): stored_from(int(writer)) + int(seq) for writer, seq in rows}


async def before_window(asker: Asker, since_us: int, newest: Places) -> Places:
    """Return the last request of each writer before a time; its newest if none came since."""
    arrived = (await load_minutes(asker)).arrived(since_us, "true")
    rows = (await asker.query(_FIRST.format(arrived=arrived), [])).rows
    return newest | {int(writer): int(seq) for writer, seq in rows}


async def arrived_since(asker: Asker, since_us: int) -> str:
    """Return the condition for requests that arrived since a time."""
    newest = await applied(asker)
    return between(await before_window(asker, since_us, newest), newest)


def between(after: Places, until: Places) -> str:
    """Return the condition for requests after one place and up to another."""
    ranges = [
        f"(seq > {after.get(writer, stored_from(writer))} AND seq <= {last})"
        for writer, last in sorted(until.items())
    ]
    return f"({' OR '.join(ranges) or 'false'})"
