"""`query_fleet`: the same question to every node, for an assistant that looks across them."""

from typing import Annotated, Any

import msgspec

from ingero.agent.api.tools.context import AgentContext, Told, audit
from ingero.agent.api.tools.trace import Compact
from ingero.contract.chain import SEVERITIES, severity_order
from ingero.contract.node_api import ChainRow, Chains, QueryReply
from ingero.core.rowmerge import RowMerge
from ingero.core.sanitise import LINE_BYTES, PREAMBLE, traced
from ingero.core.skew import skew_warnings
from ingero.transport.fanout import Fanout, NodeReply, Question, decode_reply
from ingero.transport.nodes import check_nodes
from ingero.transport.tools import ToolRefused

SKEW_THRESHOLD_MS = 10.0
MAX_TEXT_BYTES = 1 << 20


class FleetQuestion(msgspec.Struct):
    action: Annotated[str, msgspec.Meta(description="chains, ops, overview or sql")]
    since: Annotated[str, msgspec.Meta(description="for chains and ops, such as 5m")] = "5m"
    pid: Annotated[int | None, msgspec.Meta(description="for ops: one process")] = None
    query: Annotated[str, msgspec.Meta(description="for sql: one SELECT")] = ""
    sql: Annotated[str, msgspec.Meta(description="the same as query")] = ""
    limit: Annotated[int, msgspec.Meta(ge=1, le=10_000, description="for sql: rows per node")] = 1000
    tsc: Compact = True


async def query_fleet(context: AgentContext, question: FleetQuestion) -> Told:
    """Ask all configured nodes at once: their causal chains, operations, overview, or one SQL statement.

    Warnings about silent nodes and differing clocks come first; a silent node is often the one in trouble.
    """
    action = question.action.lower()
    if action not in ("chains", "ops", "overview", "sql"):
        raise ToolRefused("bad_argument", f"action: {question.action!r}; there are chains, ops, overview and sql")
    sql = question.query or question.sql
    if action == "sql" and not sql:
        raise ToolRefused("bad_argument", "action sql needs `query`")
    if not context.nodes:
        raise ToolRefused("no_nodes", "no nodes are configured; list them under fleet.nodes in ingero.yaml")
    context.since_ns(question.since)
    check_nodes(context.nodes, context.policy)
    asked = _question(action, question, sql)
    replies: list[NodeReply] = []
    async with Fanout(context.policy) as fanout:
        async for reply in fanout.ask(context.nodes, asked):
            replies.append(reply)
        offsets = fanout.offsets(context.nodes)
    merge = RowMerge()
    body = {"chains": _chains, "sql": _rows, "ops": _raw, "overview": _raw}[action](replies, merge, question)
    told = [traced(warning, LINE_BYTES) for warning in merge.warnings]  # they quote what nodes said
    if merge.is_total_failure:
        raise ToolRefused("unavailable", "no node answered: " + "; ".join(told), status=503)
    skew = [f"clock skew: {traced(str(warning), LINE_BYTES)}" for warning in skew_warnings(offsets, SKEW_THRESHOLD_MS)]
    head = ["Clock warnings:", *skew, ""] if skew else []
    warnings = [f"WARNING: {warning}" for warning in told]
    text = "\n".join([*head, *warnings, PREAMBLE, *body])
    if len(text.encode()) > MAX_TEXT_BYTES:
        raise ToolRefused("too_large", "the answer is larger than 1 MiB; narrow it with since or limit", status=413)
    audit(text)
    return Told(text=text)


def _question(action: str, question: FleetQuestion, sql: str) -> Question:
    if action == "sql":
        return Question("/api/v1/query", {"sql": sql, "limit": question.limit})
    if action == "overview":
        return Question("/api/v1/overview")
    pid = f"&pid={question.pid}" if question.pid is not None and action == "ops" else ""
    return Question(f"/api/v1/{action}?since={question.since}{pid}")


def _decoded(replies: list[NodeReply], merge: RowMerge, kind: Any) -> list[tuple[NodeReply, Any]]:
    found = []
    decode = msgspec.json.Decoder(kind).decode
    for reply in replies:
        answer = decode_reply(reply, decode, merge)
        if answer is not None:
            found.append((reply, answer))
    return found


def _chains(replies: list[NodeReply], merge: RowMerge, question: FleetQuestion) -> list[str]:
    chains: list[ChainRow] = []
    for reply, answer in _decoded(replies, merge, Chains):
        merge.answered += 1
        for chain in answer.chains:
            chain.node = chain.node or reply.name
            chains.append(chain)
    chains.sort(key=lambda chain: severity_order(chain.severity))
    lines = [f"Fleet Chains: {len(chains)} chain(s)"]
    for chain in chains:
        severity = chain.severity if chain.severity.upper() in SEVERITIES else traced(chain.severity)
        node, summary, cause = (
            traced(chain.node),
            traced(chain.summary, LINE_BYTES),
            traced(chain.root_cause, LINE_BYTES),
        )
        if question.tsc:
            lines.append(f"[{severity}] {node} | {summary} | {cause}")
        else:
            lines += [f"[{severity}] {node}", f"  {summary}", f"  root cause: {cause}"]
            lines += [f"  fix: {traced(line, LINE_BYTES)}" for line in chain.recommendations]
    return lines


def _rows(replies: list[NodeReply], merge: RowMerge, question: FleetQuestion) -> list[str]:
    rows: list[list[Any]] = []
    for reply, answer in _decoded(replies, merge, QueryReply):
        rows += merge.add(reply.name, answer.columns, answer.rows)
    cells = [[traced(value, LINE_BYTES) if isinstance(value, str) else str(value) for value in row] for row in rows]
    header = [name if name.isidentifier() and len(name) <= 64 else traced(name) for name in merge.header]
    if question.tsc or not cells:
        return ["|".join(header), *("|".join(row) for row in cells), f"{len(rows)} row(s)"]
    widths = [max(len(text) for text in column) for column in zip(header, *cells, strict=True)]
    lines = ["  ".join(t.ljust(w) for t, w in zip(line, widths, strict=True)).rstrip() for line in [header, *cells]]
    return [*lines, f"{len(rows)} row(s)"]


def _raw(replies: list[NodeReply], merge: RowMerge, question: FleetQuestion) -> list[str]:
    found = _decoded(replies, merge, msgspec.Raw)
    merge.answered += len(found)
    lines = [f"Fleet {question.action.capitalize()}: {len(found)} node(s)"]
    for reply, answer in found:
        lines += [f"--- {traced(reply.name)} ---", traced(bytes(answer).decode(errors="replace"), 32 * LINE_BYTES)]
    return lines
