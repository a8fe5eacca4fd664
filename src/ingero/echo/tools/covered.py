"""Which minutes of arrival a question may read instead of all events.

Whole minutes come from the table of arrivals. The part of a minute at the start of the window, and
requests that no roll-up has covered yet, are read from the events. Both are queries for the same
columns, so an answer is the same as one from all events, except for the rounding of sums.
"""

from dataclasses import dataclass
from typing import Final

from ingero.storage.events.arrivals import ARRIVAL_COLUMNS, arrivals_of
from ingero.storage.events.numbering import stored_from

MINUTE_US: Final = 60_000_000


@dataclass(frozen=True, slots=True)
class Minutes:
    """Which events the table of arrivals covers.

    Those that arrived from `from_us` on, up to the last request of each writer in `until`: a
    number of the tables.
    """

    from_us: int
    until: dict[int, int]

    def arrived(self, since_us: int, condition: str, requests: str = "true") -> str:
        """Return a query for what arrived since a time, for events that fulfil a condition.

        The condition may only use cluster_id, node_id and metric_name. `requests` is a condition
        for requests, which all those in `until` must fulfil.
        """
        edge_us = -(-max(since_us, self.from_us) // MINUTE_US) * MINUTE_US
        before_edge = (
            f"received_ts >= make_timestamp({since_us}) AND received_ts < make_timestamp({edge_us})"
        )
        condition, of_events = f"({condition})", f"({condition}) AND {requests}"
        return f"""(SELECT {ARRIVAL_COLUMNS} FROM arrivals
  WHERE {condition} AND minute >= make_timestamp({edge_us}) AND {self._is_covered()}
UNION ALL {arrivals_of(f"{of_events} AND {before_edge}")}
UNION ALL {
            arrivals_of(
                f"{of_events} AND received_ts >= make_timestamp({edge_us}) "
                f"AND {self._is_uncovered()}"
            )
        })"""

    def _is_covered(self) -> str:
        ranges = [
            f"(until_seq > {stored_from(writer)} AND until_seq <= {last})"
            for writer, last in sorted(self.until.items())
        ]
        return f"({' OR '.join(ranges) or 'false'})"

    def _is_uncovered(self) -> str:
        # a plain comparison lets DuckDB skip the blocks of a file that are covered
        ranges = [
            f"seq > {last}"
            if writer == 0 and len(self.until) == 1
            else f"(seq <= {stored_from(writer)} OR seq > {last})"
            for writer, last in sorted(self.until.items())
        ]
        return f"({' AND '.join(ranges) or 'true'})"
