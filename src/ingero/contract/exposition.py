"""Metrics as Prometheus reads them: families of samples, and their text format."""

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_INVALID = re.compile(r"[^a-zA-Z0-9_]")
_MAX_KEPT_CHARACTERS = 256  # longer names, which the sender chose, are converted anew
_ESCAPES = str.maketrans({"\\": "\\\\", '"': '\\"', "\n": "\\n"})

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Family:
    """One metric with its samples.

    `kind` is gauge, counter, histogram, summary or untyped. A sample may add a suffix to the name.
    """

    name: str
    kind: str
    help: str
    samples: tuple[tuple[str, Labels, float], ...]  # (suffix, labels, value)


def gauge(name: str, help: str, values: Iterable[tuple[Labels, float]]) -> Family:
    """Return a family of gauges."""
    return Family(name, "gauge", help, tuple(("", labels, value) for labels, value in values))


def counter(name: str, help: str, values: Iterable[tuple[Labels, float]]) -> Family:
    """Return a family of counters; `name` must end in `_total`."""
    return Family(name, "counter", help, tuple(("", labels, value) for labels, value in values))


def total(name: str, help: str, value: float) -> Family:
    """Return a counter without labels."""
    return counter(name, help, [((), value)])


def by_label(name: str, help: str, label: str, counts: Mapping[str, float]) -> Family:
    """Return a counter with one label, its samples sorted by the value of the label."""
    return counter(name, help, [(((label, key),), count) for key, count in sorted(counts.items())])


def labels(values: Mapping[str, str]) -> Labels:
    """Return labels in a stable order."""
    return tuple(sorted(values.items()))


def metric_name(name: str) -> str:
    """Return `ingero_node_health_score` for the OTLP name `ingero.node.health_score`."""
    return _kept_name(name) if len(name) <= _MAX_KEPT_CHARACTERS else _plain_name(name)


def _plain_name(name: str) -> str:
    plain = _INVALID.sub("_", name)
    return f"_{plain}" if plain[:1].isdigit() else plain


_kept_name = lru_cache(maxsize=4096)(_plain_name)


def render(families: Iterable[Family]) -> bytes:
    """Return the text format; equal input gives equal bytes."""
    lines: list[str] = []
    for family in families:
        if not family.samples:
            continue
        if family.help:
            help_text = family.help.replace("\\", "\\\\").replace("\n", "\\n")
            lines.append(f"# HELP {family.name} {help_text}")
        lines.append(f"# TYPE {family.name} {family.kind}")
        for suffix, pairs, value in family.samples:
            lines.append(f"{family.name}{suffix}{render_labels(pairs)} {render_value(value)}")
    lines.append("")
    return "\n".join(lines).encode()


def render_labels(pairs: Labels) -> str:
    """Return `{a="1",b="2"}`, or an empty string without labels.

    Characters that a terminal would act upon or hide become visible escapes.
    """
    return (
        "{" + ",".join([f'{key}="{_render_text(value)}"' for key, value in pairs]) + "}"
        if pairs
        else ""
    )


def _render_text(value: str) -> str:
    if not value.isprintable():
        value = "".join(c if c.isprintable() or c == "\n" else _visible(c) for c in value)
    return value.translate(_ESCAPES)


def _visible(character: str) -> str:
    return character.encode("unicode_escape").decode()


def render_value(value: float) -> str:
    """Return the shortest exact form of a number; NaN and infinities as the format spells them."""
    if isinstance(value, int) or (
        math.isfinite(value) and value == int(value) and abs(value) < 1e15
    ):
        return str(int(value))
    if math.isfinite(value):
        return repr(value)
    return "NaN" if math.isnan(value) else "+Inf" if value > 0 else "-Inf"
