"""Causal chains on a screen and as JSON."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from ingero.cli.show.table import print_json, printable, severity_tag
from ingero.cli.show.wrap import on_screen, screen_columns, wrap
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
    headline = f"CAUSAL CHAINS - {len(found)} chain(s) from {nodes} node(s), {how}: {counts}"
    print(f"{on_screen(headline, '  ')}\n")
    for index, item in enumerate(found):
        print_chain(item, labels[index] if labels else {})


def tagged(severity: str, text: str) -> str:
    """Return a text behind its severity, in lines that fit the terminal."""
    plain = f"[{printable(severity)}]"
    return severity_tag(severity) + on_screen(f"{plain}{text}", "    ").removeprefix(plain)


def print_chain(item: RecordedChain, labels: Mapping[str, str] = MappingProxyType({})) -> None:
    """Print one chain, with the annotations of the job at that time."""
    node = f" [{printable(item.node)}]" if item.node else ""
    print(tagged(item.chain.severity, f"{node} {printable(item.chain.summary)}"))
    for entry in item.chain.timeline:
        line = f"  [{entry.layer}] {printable(entry.op)}: {printable(entry.detail)}"
        print(on_screen(line, "    "))
    if labels:
        print(
            f"  During: {', '.join(f'{key}={printable(value)}' for key, value in labels.items())}"
        )
    print(on_screen(f"  Root cause: {printable(item.chain.root_cause)}", "    "))
    if item.chain.recommendations:
        print("\n".join(fix_lines(item.chain.recommendations)))
    print()


def fix_lines(recommendations: Sequence[str]) -> list[str]:
    """Return one line, which programs read, or on a terminal lines of its own for each."""
    fixes, columns = [printable(line) for line in recommendations], screen_columns()
    if columns is None:
        return [f"  Fix: {'; '.join(fixes)}"] if fixes else []
    return [
        line
        for number, fix in enumerate(fixes)
        for line in wrap(f"{'       ' if number else '  Fix: '}{fix}", columns, "         ")
    ]


def print_chains_json(found: list[RecordedChain], labels: Sequence[Mapping[str, str]]) -> None:
    """Print chains as one JSON array; labels, if given, go with the chain at the same place."""
    extra = [{"annotations": own} for own in labels] or [{}] * len(found)
    print_json([chain_json(chain) | more for chain, more in zip(found, extra, strict=True)])
