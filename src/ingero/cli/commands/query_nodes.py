"""`ingero query --nodes`: the rows of many nodes, printed as they arrive."""

import sys

import msgspec

from ingero.cli.fanout.ask import ask_nodes
from ingero.cli.fanout.options import FanoutOptions
from ingero.cli.fanout.report import report_problems, require_an_answer, some_of
from ingero.cli.show.rows import RowPrinter
from ingero.contract.api_paths import NODE_QUERY
from ingero.contract.node_api import QueryReply
from ingero.core.counted import counted
from ingero.core.rowmerge import RowMerge
from ingero.transport.fanout.ask import decode_reply
from ingero.transport.fanout.client import NodeReply, Question

_decode_rows = msgspec.json.Decoder(QueryReply).decode


def ask_rows(options: FanoutOptions, sql: str, limit: int, form: str) -> int:
    """Ask every node the same SQL and print the rows; returns the exit status."""
    merge, printer = RowMerge(), RowPrinter(form)
    truncated: list[str] = []

    def take(reply: NodeReply) -> None:
        decoded = decode_reply(reply, _decode_rows, merge)
        if decoded is None:
            return
        had_header = bool(merge.header)
        rows = merge.add(reply.name, decoded.columns, decoded.rows)
        if merge.header and not had_header:
            printer.begin(merge.header)
        printer.rows(rows)
        if decoded.truncated:
            truncated.append(reply.name)

    result = ask_nodes(options, (Question(NODE_QUERY, {"sql": sql, "limit": limit}), take))
    require_an_answer(merge, result)
    printer.end()
    if form == "table":
        text = (
            f"\n  {counted(merge.rows, 'row')} from {len(merge.nodes)} node(s)"
            if merge.rows
            else "no results"
        )
        print(text, file=sys.stderr)
    if truncated:
        print(
            f"WARNING: more than {limit} rows on {some_of(truncated)}; raise --limit",
            file=sys.stderr,
        )
    return report_problems(options, merge, result)
