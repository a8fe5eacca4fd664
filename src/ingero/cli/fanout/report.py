"""How complete the answer of many nodes is: warnings on standard error, and the exit status."""

import sys
from collections.abc import Sequence

from ingero.cli.fanout.ask import FanoutResult
from ingero.cli.fanout.options import FanoutOptions
from ingero.cli.show.table import printable
from ingero.core.clocks.skew import skew_warnings, unsure_nodes
from ingero.core.rowmerge import RowMerge
from ingero.errors import Unavailable

PARTIAL_STATUS = 3
INTERRUPTED_STATUS = 130
MAX_NAMED = 5  # nodes named in one line
MAX_SKEW_WARNINGS = 10


def require_an_answer(merge: RowMerge, result: FanoutResult) -> None:
    """Raise Unavailable when every node failed."""
    if merge.is_total_failure and not result.interrupted:
        raise Unavailable("no node answered:\n  " + "\n  ".join(map(printable, merge.warnings)))


def report_problems(options: FanoutOptions, merge: RowMerge, result: FanoutResult) -> int:
    """Print warnings about missing answers and deviating clocks; return the exit status."""
    for warning in merge.warnings:
        print(f"WARNING: {printable(warning)}", file=sys.stderr)
    skewed = skew_warnings(result.offsets, options.skew_threshold_ms)
    for skew in skewed[:MAX_SKEW_WARNINGS]:
        print(f"WARNING: clocks differ: {skew}", file=sys.stderr)
    if len(skewed) > MAX_SKEW_WARNINGS:
        print(
            f"WARNING: {len(skewed) - MAX_SKEW_WARNINGS} more nodes have deviating clocks; "
            "is NTP or PTP running?",
            file=sys.stderr,
        )
    unsure = unsure_nodes(result.offsets, options.skew_threshold_ms)
    if unsure:
        longest = max(result.offsets[name].rtt_ms for name in unsure)
        bound = f"closer than {longest / 2:.0f} ms: round trips take up to {longest:.0f} ms"
        print(f"NOTE: clocks of {some_of(unsure)} cannot be compared {bound}", file=sys.stderr)
    if result.interrupted:
        missing = [node for node in options.nodes if node not in result.answered]
        state = f"no answer yet from {some_of(missing)}" if missing else "every node had answered"
        print(f"interrupted: {state}", file=sys.stderr)
        return INTERRUPTED_STATUS
    return PARTIAL_STATUS if options.fail_on_partial and merge.is_partial else 0


def some_of(names: Sequence[str]) -> str:
    """Name the first few of these, and say how many more there are."""
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more
