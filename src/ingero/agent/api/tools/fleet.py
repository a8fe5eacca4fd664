"""`query_fleet`: the same question to every node."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final, TypeAlias

import msgspec

from ingero.agent.api.tools.context import (
    MAX_ANSWER_BYTES,
    AgentContext,
    Compact,
    Pid,
    ToolAnswer,
    audit,
)
from ingero.agent.api.tools.trace import column_name
from ingero.contract import api_paths
from ingero.contract.chain import SEVERITIES, severity_order
from ingero.contract.node_api import ChainRow, Chains, QueryReply
from ingero.core.clocks.skew import skew_warnings, unsure_nodes
from ingero.core.rowmerge import RowMerge
from ingero.core.sanitise import LINE_BYTES, PREAMBLE, compact, traced
from ingero.storage.sqlite_guard import DEFAULT_ROWS, MAX_ROWS
from ingero.transport.fanout.ask import Fanout, decode_reply
from ingero.transport.fanout.client import Question
from ingero.transport.fanout.nodes import check_nodes
from ingero.transport.tools.tool import ToolRefused

SKEW_THRESHOLD_MS = 10.0
MAX_WARNINGS = 20
NODE_BYTES = 32 * LINE_BYTES  # of the operations or the overview of one node
Entry: TypeAlias = tuple[int, list[str]]  # its order, worst first, and its texts
ACTIONS: Final = ("chains", "ops", "overview", "sql")


class FleetQuestion(msgspec.Struct):
    action: Annotated[
        str,
        msgspec.Meta(
            description="what to ask: chains, ops, overview or sql",
            extra_json_schema={"enum": ACTIONS},
        ),
    ]
    since: Annotated[
        str, msgspec.Meta(description="for chains and ops, such as 5m or 2h; empty is everything")
    ] = "5m"
    pid: Annotated[Pid, msgspec.Meta(description="for ops: one process; 0 is all")] = 0
    query: Annotated[str, msgspec.Meta(description="for sql: one SELECT, as for run_sql")] = ""
    sql: Annotated[str, msgspec.Meta(description="the same as query")] = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_ROWS, description="for sql: rows per node")] = (
        DEFAULT_ROWS
    )
    tsc: Compact = True


async def query_fleet(context: AgentContext, question: FleetQuestion) -> ToolAnswer:
    """Query all configured nodes at once: causal chains, operations, overview, or one SQL query.

    To find a slow node use chains: worst first, with node, what was slow and why. Warnings about
    nodes that did not answer and about differing clocks come first. A node that does not answer is
    often the one with the problem, and times of nodes whose clocks differ must not be compared.
    """
    asked = _asked(question)
    if not context.nodes:
        raise ToolRefused(
            "no_nodes", "no nodes are configured; list them under fleet.nodes in ingero.yaml"
        )
    context.since_ns(question.since)
    check_nodes(context.nodes, context.policy)
    kind, merge = _KINDS[question.action.lower()], RowMerge()
    found: list[Entry] = []
    size_bytes = 0
    async with Fanout(context.policy, context.now_ns) as fanout:
        async for reply in fanout.ask(context.nodes, asked):
            decoded = decode_reply(reply, kind.decode, merge)
            entries = [] if decoded is None else kind.entries(question, merge, reply.name, decoded)
            size_bytes = _bounded(
                size_bytes + sum(len(text.encode()) for _, texts in entries for text in texts)
            )
            found += entries
        offsets = fanout.offsets(context.nodes)
    skew = [
        f"clock skew: {_line(str(warning))}"
        for warning in skew_warnings(offsets, SKEW_THRESHOLD_MS)
    ]
    # they quote replies of nodes
    warnings = [_line(warning) for warning in merge.warnings[:MAX_WARNINGS]]
    if len(merge.warnings) > MAX_WARNINGS:
        warnings.append(f"and {len(merge.warnings) - MAX_WARNINGS} more nodes with problems")
    if merge.is_total_failure:
        raise ToolRefused("unavailable", "no node answered: " + "; ".join(warnings), status=503)
    unsure = unsure_nodes(offsets, SKEW_THRESHOLD_MS)
    if unsure:
        skew.append(
            f"{len(unsure)} node(s) answer too slowly to compare clocks to {SKEW_THRESHOLD_MS:g} ms"
        )
    head = ["Clock warnings:", *skew[:MAX_WARNINGS], ""] if skew else []
    head += [f"WARNING: {warning}" for warning in warnings]
    text = "\n".join([*head, PREAMBLE, *kind.lines(question, merge, found)])
    _bounded(len(text.encode()))
    audit(text)
    return ToolAnswer(text=text)


def _bounded(size_bytes: int) -> int:
    if size_bytes > MAX_ANSWER_BYTES:
        raise ToolRefused(
            "too_large",
            "the answer is larger than 1 MiB; narrow it with since or limit",
            status=413,
        )
    return size_bytes


def _asked(question: FleetQuestion) -> Question:
    action = question.action.lower()
    if action not in ACTIONS:
        raise ToolRefused(
            "bad_argument", f"action: {question.action!r}; there are {', '.join(ACTIONS)}"
        )
    if action == "sql":
        sql = question.query or question.sql
        if not sql:
            raise ToolRefused("bad_argument", "action sql needs `query`")
        return Question(api_paths.NODE_QUERY, {"sql": sql, "limit": question.limit})
    if action == "overview":
        return Question(api_paths.NODE_OVERVIEW)
    pid = f"&pid={question.pid}" if question.pid and action == "ops" else ""
    path = api_paths.NODE_OPS if action == "ops" else api_paths.NODE_CHAINS
    return Question(f"{path}?since={question.since}{pid}")


@dataclass(frozen=True, slots=True)
class _Kind:
    """How the replies to one action become text.

    A reply is released once its entries are kept.
    """

    decode: Callable[[bytes], Any]
    entries: Callable[[FleetQuestion, RowMerge, str, Any], list[Entry]]
    lines: Callable[[FleetQuestion, RowMerge, list[Entry]], list[str]]


def _chains(question: FleetQuestion, merge: RowMerge, node: str, reply: Chains) -> list[Entry]:
    merge.answered += 1
    if reply.truncated:
        merge.warnings.append(
            f"node {node}: only its newest {len(reply.chains)} chains; shorten since"
        )
    return [
        (severity_order(chain.severity), _chain(question, chain.node or node, chain))
        for chain in reply.chains
    ]


def _chain(question: FleetQuestion, node: str, chain: ChainRow) -> list[str]:
    severity = chain.severity if chain.severity.upper() in SEVERITIES else traced(chain.severity)
    if question.tsc:
        # summaries end with their cause, which has a column of its own here
        slow = chain.summary.removesuffix(f" - {chain.root_cause}")
        return [f"[{severity}] {traced(node)} | {_line(slow)} | {_line(chain.root_cause)}"]
    fixes = [f"  fix: {_line(text)}" for text in chain.recommendations]
    return [
        f"[{severity}] {traced(node)}",
        f"  {_line(chain.summary)}",
        f"  root cause: {_line(chain.root_cause)}",
        *fixes,
    ]


def _chain_lines(question: FleetQuestion, _: RowMerge, found: list[Entry]) -> list[str]:
    hint = f"none in the last {question.since}; an empty `since` asks for everything recorded"
    worst_first = [text for _, texts in sorted(found, key=lambda entry: entry[0]) for text in texts]
    return [f"Fleet Chains: {len(found)} chain(s)", *(worst_first or [hint] * bool(question.since))]


def _rows(question: FleetQuestion, merge: RowMerge, node: str, reply: QueryReply) -> list[Entry]:
    if reply.truncated:
        merge.warnings.append(
            f"node {node}: only the first {question.limit} rows; raise limit or narrow the query"
        )
    rows = merge.add(node, reply.columns, reply.rows)
    return [
        (0, [_line(value) if isinstance(value, str) else str(value) for value in row])
        for row in rows
    ]


def _row_lines(question: FleetQuestion, merge: RowMerge, found: list[Entry]) -> list[str]:
    table = [[column_name(name) for name in merge.header], *(cells for _, cells in found)]
    widths = [0 if question.tsc else max(map(len, column)) for column in zip(*table, strict=True)]
    gap = "|" if question.tsc else "  "
    lines = [
        gap.join(t.ljust(w) for t, w in zip(row, widths, strict=True)).rstrip() for row in table
    ]
    return [*lines, f"{len(found)} row(s)"]


def _whole(
    question: FleetQuestion, merge: RowMerge, node: str, reply: dict[str, Any]
) -> list[Entry]:
    merge.answered += 1
    text = msgspec.json.encode(compact(reply) if question.tsc else reply).decode()
    return [(0, [f"--- {traced(node)} ---", traced(text, NODE_BYTES)])]


def _whole_lines(question: FleetQuestion, _: RowMerge, found: list[Entry]) -> list[str]:
    return [
        f"Fleet {question.action.capitalize()}: {len(found)} node(s)",
        *(text for _, texts in found for text in texts),
    ]


def _line(text: str) -> str:
    """Mark text as data and put it on one line, since a new line would look like the next row."""
    return traced(text.replace("\n", " "), LINE_BYTES)


_WHOLE: Final = _Kind(msgspec.json.Decoder(dict[str, Any]).decode, _whole, _whole_lines)
_KINDS: Final = {
    "chains": _Kind(msgspec.json.Decoder(Chains).decode, _chains, _chain_lines),
    "ops": _WHOLE,
    "overview": _WHOLE,
    "sql": _Kind(msgspec.json.Decoder(QueryReply).decode, _rows, _row_lines),
}
