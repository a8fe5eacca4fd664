"""Asks many nodes and prints what they say: rows, chains, warnings about silence and about clocks."""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import msgspec

from ingero.cli.fanout_options import FanoutOptions
from ingero.cli.rows import RowPrinter
from ingero.cli.table import print_json, printable, severity_tag
from ingero.contract.chain import severity_order
from ingero.contract.node_api import ChainRow, Chains, QueryReply
from ingero.core.rowmerge import RowMerge
from ingero.core.skew import ClockOffset, skew_warnings
from ingero.errors import Unavailable
from ingero.transport.fanout import Fanout, NodeReply, Question

PARTIAL_STATUS = 3
INTERRUPTED_STATUS = 130
_decode_rows = msgspec.json.Decoder(QueryReply).decode
_decode_chains = msgspec.json.Decoder(Chains).decode


async def each_reply(
    options: FanoutOptions, question: Question, take: Callable[[NodeReply], None]
) -> dict[str, ClockOffset]:
    """Ask all nodes; `take` gets the replies in node order. Returns the clock offsets that could be measured."""
    async with Fanout(options.policy, keep_open=False) as fanout:
        async for reply in fanout.ask(options.nodes, question):
            take(reply)
        return fanout.offsets(options.nodes)


def ask_rows(options: FanoutOptions, sql: str, limit: int, form: str) -> int:
    """`query --nodes`; returns the exit status."""
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

    question = Question("/api/v1/query", {"sql": sql, "limit": limit})
    offsets, interrupted = run_until_interrupt(each_reply(options, question, take))
    printer.end()
    if merge.is_total_failure and not interrupted:
        raise Unavailable("no node answered:\n  " + "\n  ".join(merge.warnings))
    if form == "table":
        text = f"\n  {merge.rows} rows from {len(merge.nodes)} node(s)" if merge.rows else "no results"
        print(text, file=sys.stderr)
    if truncated:
        print(f"WARNING: more than {limit} rows on {', '.join(truncated[:5])}; raise --limit", file=sys.stderr)
    return closing(options, merge, offsets, interrupted)


def ask_chains(options: FanoutOptions, since: str | None, as_json: bool) -> int:
    """`explain --nodes`; returns the exit status."""
    merge = RowMerge()
    chains: list[ChainRow] = []

    def take(reply: NodeReply) -> None:
        decoded = decode_reply(reply, _decode_chains, merge)
        if decoded is not None:
            merge.answered += 1
            for chain in decoded.chains:
                chain.node = chain.node or reply.name
                chain.timeline = []
            chains.extend(decoded.chains)

    path = f"/api/v1/chains?since={since}" if since else "/api/v1/chains"
    offsets, interrupted = run_until_interrupt(each_reply(options, Question(path), take))
    if merge.is_total_failure and not interrupted:
        raise Unavailable("no node answered:\n  " + "\n  ".join(merge.warnings))
    chains.sort(key=lambda chain: severity_order(chain.severity))
    if as_json:
        print_json([{"node": chain.node, **msgspec.to_builtins(chain)} for chain in chains])
    else:
        _print_chains(chains, len(options.nodes))
    return closing(options, merge, offsets, interrupted)


def decode_reply(reply: NodeReply, decode: Callable[[bytes], Any], merge: RowMerge) -> Any:
    """The decoded answer, or None after noting why there is none."""
    if reply.failure is not None:
        merge.fail(reply.address, reply.failure)
        return None
    try:
        return decode(reply.body)
    except (msgspec.DecodeError, RecursionError) as error:
        merge.fail(reply.address, f"its answer cannot be read: {error}")
        return None


def run_until_interrupt(work: Awaitable[dict[str, ClockOffset]]) -> tuple[dict[str, ClockOffset], bool]:
    """Run to the end, or until Ctrl-C: then what has arrived so far counts."""
    import uvloop

    async def whole() -> dict[str, ClockOffset]:
        return await work

    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(whole()), False
    except KeyboardInterrupt:
        return {}, True


def closing(options: FanoutOptions, merge: RowMerge, offsets: Mapping[str, ClockOffset], interrupted: bool) -> int:
    """Warnings, and the exit status."""
    for warning in merge.warnings:
        print(f"WARNING: {printable(warning)}", file=sys.stderr)
    skewed = skew_warnings(offsets, options.skew_threshold_ms)
    for skew in skewed[:10]:
        print(f"WARNING: clocks differ: {skew}", file=sys.stderr)
    if len(skewed) > 10:
        print(f"WARNING: {len(skewed) - 10} more nodes have deviating clocks; is NTP or PTP running?", file=sys.stderr)
    if interrupted:
        print(f"interrupted: {merge.answered} of {len(options.nodes)} nodes had answered", file=sys.stderr)
        return INTERRUPTED_STATUS
    return PARTIAL_STATUS if options.fail_on_partial and merge.failed else 0


def _print_chains(chains: list[ChainRow], asked: int) -> None:
    if not chains:
        print(f"no causal chains on {asked} node(s): nothing was slow with a cause we can see")
        return
    print(f"FLEET CAUSAL CHAINS - {len(chains)} chain(s) from {asked} node(s)\n")
    for chain in chains:
        print(f"{severity_tag(chain.severity)} [{printable(chain.node)}] {printable(chain.summary)}")
        print(f"  Root cause: {printable(chain.root_cause)}")
        if chain.recommendations:
            print(f"  Fix: {'; '.join(printable(line) for line in chain.recommendations)}")
        print()
