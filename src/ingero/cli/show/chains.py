"""Causal chains on a screen and as JSON."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ingero.cli.show.table import print_json, printable, severity_tag
from ingero.cli.show.wrap import screen_columns, wrap
from ingero.contract.chain import Severity
from ingero.storage.trace.chains import RecordedChain


def chain_json(recorded: RecordedChain) -> dict[str, Any]:
    """Return the published form of a chain, without empty values."""
    chain = recorded.chain
    full = {
        "node": recorded.node, "id": recorded.id, "detected_at": recorded.detected_at_ns,
        "severity": str(chain.severity), "summary": chain.summary, "root_cause": chain.root_cause,
        "explanation": chain.explanation, "recommendations": list(chain.recommendations),
        "cuda_op": chain.cuda_op, "cuda_p99_us": chain.p99_ns // 1000,
        "cuda_p50_us": chain.p50_ns // 1000, "tail_ratio": chain.tail_ratio,
        "timeline": [
            {"layer": str(e.layer), "op": e.op, "detail": e.detail, "dur_us": e.duration_us}
            for e in chain.timeline
        ],
        "pid": chain.pid, "confidence": chain.confidence,
    }  # fmt: skip
    always = ("id", "severity", "summary", "root_cause", "explanation", "recommendations")
    return {key: value for key, value in full.items() if value or key in always}


def print_chains(
    found: list[RecordedChain], *, derived: bool, labels: Sequence[Mapping[str, str]]
) -> None:
    """Print chains in the given order: a headline, then each with evidence, cause and fix."""
    if not found:
        return
    counts = ", ".join(
        f"{count} {severity}"
        for severity in Severity
        if (count := sum(item.chain.severity == severity for item in found))
    )
    nodes = len({item.node for item in found})
    how = "derived from the events" if derived else "as recorded"
    print(f"CAUSAL CHAINS - {len(found)} chain(s) from {nodes} node(s), {how}: {counts}\n")
    for index, item in enumerate(found):
        print_chain(item, labels[index] if labels else {})


def print_chain(item: RecordedChain, labels: Mapping[str, str] = MappingProxyType({})) -> None:
    """Print one chain, with the annotations of the job at that time."""
    node = f" [{printable(item.node)}]" if item.node else ""
    print(f"{severity_tag(item.chain.severity)}{node} {printable(item.chain.summary)}")
    for entry in item.chain.timeline:
        print(f"  [{entry.layer}] {printable(entry.op)}: {printable(entry.detail)}")
    if labels:
        print(
            f"  During: {', '.join(f'{key}={printable(value)}' for key, value in labels.items())}"
        )
    print(f"  Root cause: {printable(item.chain.root_cause)}")
    if item.chain.recommendations:
        _print_fixes([printable(line) for line in item.chain.recommendations])
    print()


def _print_fixes(fixes: Sequence[str]) -> None:
    """Print on one line, which programs read, or on a terminal each on lines of its own."""
    columns = screen_columns()
    if columns is None:
        print(f"  Fix: {'; '.join(fixes)}")
        return
    for number, fix in enumerate(fixes):
        lead = "  Fix: " if number == 0 else "       "
        print("\n".join(wrap(f"{lead}{fix}", columns, "         ")))


def print_chains_json(found: list[RecordedChain], labels: Sequence[Mapping[str, str]]) -> None:
    """Print chains as one JSON array; labels, if given, go with the chain at the same place."""
    extra = [{"annotations": own} for own in labels] or [{}] * len(found)
    print_json([chain_json(chain) | more for chain, more in zip(found, extra, strict=True)])
