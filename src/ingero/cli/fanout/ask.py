"""Asks many nodes and prints what they say: rows, chains, warnings about silence and about clocks."""

import asyncio
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec

from ingero.cli.fanout.options import FanoutOptions
from ingero.cli.show.rows import RowPrinter
from ingero.cli.show.table import print_json, printable, severity_tag
from ingero.contract.chain import severity_order
from ingero.contract.node_api import ChainRow, Chains, QueryReply
from ingero.core.clocks.skew import ClockOffset, skew_warnings, unsure_nodes
from ingero.core.rowmerge import RowMerge
from ingero.errors import Unavailable
from ingero.transport.fanout.ask import Fanout, NodeReply, Question, decode_reply

PARTIAL_STATUS = 3
INTERRUPTED_STATUS = 130
MAX_NAMED = 5  # in one line
Take: TypeAlias = Callable[[NodeReply], None]
_decode_rows = msgspec.json.Decoder(QueryReply).decode
_decode_chains = msgspec.json.Decoder(Chains).decode


@dataclass(slots=True)
class Course:
    """How asking went: who was heard, how far clocks are off, whether Ctrl-C ended it."""

    heard: set[str] = field(default_factory=set)
    offsets: dict[str, ClockOffset] = field(default_factory=dict)
    interrupted: bool = False


def ask_nodes(options: FanoutOptions, *asked: tuple[Question, Take]) -> Course:
    """Ask all nodes one question after the other; each `Take` gets the replies in node order.

    Ctrl-C ends it, and what has arrived by then still counts."""
    import uvloop

    course = Course()
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_ask(options, asked, course))
    except KeyboardInterrupt:
        course.interrupted = True
    return course


async def _ask(
    options: FanoutOptions, asked: tuple[tuple[Question, Take], ...], course: Course
) -> None:
    async with Fanout(options.policy, keep_open=False) as fanout:
        try:
            for question, take in asked:
                course.heard = set()
                async for reply in fanout.ask(options.nodes, question):
                    course.heard.add(reply.address)
                    take(reply)
        except asyncio.CancelledError:
            if sys.stderr.isatty():
                print(file=sys.stderr)  # below the ^C of the terminal
            for reply in fanout.unread():
                course.heard.add(reply.address)
                take(reply)
            raise
        finally:
            course.offsets = fanout.offsets(options.nodes)


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

    course = ask_nodes(options, (Question("/api/v1/query", {"sql": sql, "limit": limit}), take))
    refuse_silence(merge, course)
    printer.end()
    if form == "table":
        text = (
            f"\n  {merge.rows} rows from {len(merge.nodes)} node(s)" if merge.rows else "no results"
        )
        print(text, file=sys.stderr)
    if truncated:
        print(
            f"WARNING: more than {limit} rows on {some_of(truncated)}; raise --limit",
            file=sys.stderr,
        )
    return closing(options, merge, course)


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
            if decoded.truncated:
                merge.warnings.append(
                    f"node {reply.name}: only its newest chains are here; narrow it with --since"
                )

    path = f"/api/v1/chains?since={since}" if since else "/api/v1/chains"
    course = ask_nodes(options, (Question(path), take))
    refuse_silence(merge, course)
    chains.sort(key=lambda chain: severity_order(chain.severity))
    if as_json:
        print_json([{"node": chain.node, **msgspec.to_builtins(chain)} for chain in chains])
    else:
        _print_chains(chains, merge.answered, len(options.nodes))
    return closing(options, merge, course)


def refuse_silence(merge: RowMerge, course: Course) -> None:
    """Raises Unavailable where every node failed."""
    if merge.is_total_failure and not course.interrupted:
        raise Unavailable("no node answered:\n  " + "\n  ".join(map(printable, merge.warnings)))


def closing(options: FanoutOptions, merge: RowMerge, course: Course) -> int:
    """Warnings, and the exit status."""
    for warning in merge.warnings:
        print(f"WARNING: {printable(warning)}", file=sys.stderr)
    skewed = skew_warnings(course.offsets, options.skew_threshold_ms)
    for skew in skewed[:10]:
        print(f"WARNING: clocks differ: {skew}", file=sys.stderr)
    if len(skewed) > 10:
        print(
            f"WARNING: {len(skewed) - 10} more nodes have deviating clocks; is NTP or PTP running?",
            file=sys.stderr,
        )
    unsure = unsure_nodes(course.offsets, options.skew_threshold_ms)
    if unsure:
        longest = max(course.offsets[name].rtt_ms for name in unsure)
        bound = f"closer than {longest / 2:.0f} ms: round trips take up to {longest:.0f} ms"
        print(f"NOTE: clocks of {some_of(unsure)} cannot be compared {bound}", file=sys.stderr)
    if course.interrupted:
        missing = [node for node in options.nodes if node not in course.heard]
        print(f"interrupted: no answer yet from {some_of(missing) or 'nobody'}", file=sys.stderr)
        return INTERRUPTED_STATUS
    return PARTIAL_STATUS if options.fail_on_partial and merge.is_partial else 0


def some_of(names: Sequence[str]) -> str:
    """The first few, and how many more."""
    more = f" and {len(names) - MAX_NAMED} more" if len(names) > MAX_NAMED else ""
    return ", ".join(names[:MAX_NAMED]) + more


def _print_chains(chains: list[ChainRow], answered: int, asked: int) -> None:
    nodes = f"{asked} node(s)" if answered == asked else f"{answered} of {asked} nodes"
    if not chains:
        print(f"no causal chains on {nodes}: nothing was slow with a cause we can see")
        return
    print(f"FLEET CAUSAL CHAINS - {len(chains)} chain(s) from {nodes}\n")
    for chain in chains:
        print(
            f"{severity_tag(chain.severity)} [{printable(chain.node)}] {printable(chain.summary)}"
        )
        print(f"  Root cause: {printable(chain.root_cause)}")
        if chain.recommendations:
            print(f"  Fix: {'; '.join(printable(line) for line in chain.recommendations)}")
        print()
