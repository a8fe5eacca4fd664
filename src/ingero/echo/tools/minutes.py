"""What arrived in a window, by node and metric, without reading all of its events."""

from collections.abc import Iterable
from typing import Final

from ingero.echo.tools.asker import Asker
from ingero.echo.tools.covered import Minutes
from ingero.storage.events.numbering import stored_from

NEVER_US: Final = 253_402_300_740_000_000  # the last minute of the year 9999
_COVERED: Final = f"""SELECT from_us, writer, last FROM
  (SELECT greatest((SELECT coalesce(epoch_us(min(received_ts)), {NEVER_US}) FROM events),
    (SELECT max(value) FROM meta
      WHERE key = 'arrivals_from_us' OR key LIKE 'arrivals_from_us/%')) AS from_us)
  LEFT JOIN (SELECT coalesce(TRY_CAST(split_part(key, '/', 2) AS BIGINT), 0) AS writer,
      max(value) AS last
    FROM meta WHERE key = 'arrived_seq' OR key LIKE 'arrived_seq/%' GROUP BY 1) ON true"""


async def load_minutes(asker: Asker) -> Minutes:
    """Return what the table of arrivals covers, read when a question first needs it."""
    if asker.minutes is None:
        rows = (await asker.query(_COVERED, [])).rows
        until = {
            int(writer): stored_from(int(writer)) + int(last)
            for _, writer, last in rows
            if writer is not None
        }
        asker.minutes = Minutes(int(rows[0][0]), until)
    return asker.minutes


async def arrived_metrics(
    asker: Asker, cluster: str, since_us: int, metrics: Iterable[str]
) -> list[str]:
    """Return which of these metrics arrived since a time; the others need not be searched for."""
    listed = ", ".join(f"'{name}'" for name in metrics)
    condition = f"cluster_id = $1 AND metric_name IN ({listed})"
    arrived = (await load_minutes(asker)).arrived(since_us, condition)
    rows = (await asker.query(f"SELECT DISTINCT metric_name FROM {arrived}", [cluster])).rows
    return [str(name) for (name,) in rows]
