"""Metrics as a Prometheus server reads them: families of samples and their text form."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_INVALID = re.compile(r"[^a-zA-Z0-9_]")
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Family:
    """One metric: `kind` is gauge, counter, histogram, summary or untyped; a sample may add a suffix to the name."""

    name: str
    kind: str
    help: str
    samples: tuple[tuple[str, Labels, float], ...]  # (suffix, labels, value)


def gauge(name: str, help: str, values: Iterable[tuple[Labels, float]]) -> Family:
    """A family of plain gauges."""
    return Family(name, "gauge", help, tuple(("", labels, value) for labels, value in values))


def counter(name: str, help: str, values: Iterable[tuple[Labels, float]]) -> Family:
    """A family of counters; the name ends in `_total`."""
    return Family(name, "counter", help, tuple(("", labels, value) for labels, value in values))


def total(name: str, help: str, value: float) -> Family:
    """A counter without labels."""
    return counter(name, help, [((), value)])


def by_label(name: str, help: str, label: str, counts: Mapping[str, float]) -> Family:
    """A counter with one label, its values in order."""
    return counter(name, help, [(((label, key),), count) for key, count in sorted(counts.items())])


def labels(values: Mapping[str, str]) -> Labels:
    """Labels in a stable order."""
    return tuple(sorted(values.items()))


@lru_cache(maxsize=4096)
def metric_name(name: str) -> str:
    """An OTLP name as Prometheus spells it: `ingero.node.health_score` is `ingero_node_health_score`."""
    plain = _INVALID.sub("_", name)
    return f"_{plain}" if plain[:1].isdigit() else plain


def render(families: Iterable[Family]) -> bytes:
    """The text format; equal input gives equal bytes."""
    lines: list[str] = []
    for family in families:
        if not family.samples:
            continue
        if family.help:
            said = family.help.replace("\\", "\\\\").replace("\n", "\\n")
            lines.append(f"# HELP {family.name} {said}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        for suffix, pairs, value in family.samples:
            lines.append(f"{family.name}{suffix}{render_labels(pairs)} {render_value(value)}")
    lines.append("")
    return "\n".join(lines).encode()


def render_labels(pairs: Labels) -> str:
    """`{a="1",b="2"}`, or nothing."""
    return (
        "{" + ",".join([f'{key}="{value.translate(_ESCAPES)}"' for key, value in pairs]) + "}"
        if pairs
        else ""
    )


def render_value(value: float) -> str:
    """Shortest exact form; the format has its own words for what is not finite."""
    if isinstance(value, int) or (
        math.isfinite(value) and value == int(value) and abs(value) < 1e15
    ):
        return str(int(value))
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
