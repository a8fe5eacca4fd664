"""A metrics page of an inference engine: text in, canonical values out.

The page may come from any process, so that nothing in it is trusted: lines that are too long or
make no sense are left out, and there are limits on ranks and labels.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from ingero.contract.measurements.engines import MAX_NAME, EngineKind, printable
from ingero.core.inference.metric_table import TABLES, EngineTable, Meaning, Value

MAX_LINE: Final = 4096  # characters; engines write a few hundred
MAX_LINES: Final = 100_000
MAX_RANKS: Final = 64  # data-parallel ranks of one engine
LARGEST: Final = 1e15  # no counter of an engine is larger
_LINE: Final = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?[ \t]+([^ \t]+)(?:[ \t].*)?")
_LABEL: Final = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"')
_PREFIXES: Final = tuple((table.prefix, kind) for kind, table in TABLES.items())
_MODEL_LABELS: Final = ("model_name", "model")

Values = dict[Value, float]


@dataclass(frozen=True, slots=True)
class EnginePage:
    """What a page says: the kind of engine, its model and the values of each rank.

    The rank is None where the engine has no data-parallel ranks.
    """

    kind: EngineKind
    model: str = ""
    ranks: dict[int | None, Values] = field(default_factory=dict)
    left_out: int = 0  # lines that name a known metric and make no sense


def read_page(text: str) -> EnginePage | None:
    """Return what a page says; None where it is not the page of a known engine."""
    kind = _kind_of(text)
    if kind is None:
        return None
    table, model, left_out = TABLES[kind], "", 0
    ranks: dict[int | None, Values] = {}
    for name, rest in _lines(text):
        meanings = table.metrics.get(name)
        if meanings is None:
            continue
        found = _LINE.fullmatch(rest)
        value = _number(found[3]) if found else None
        if found is None or value is None:
            left_out += 1
            continue
        labels = dict(_LABEL.findall(found[2] or ""))
        if any(labels.get(label, "0") != "0" for label in table.first):
            continue  # another rank of the same batch
        model = model or _model(labels)
        rank = _rank(labels, table)
        if rank not in ranks and len(ranks) >= MAX_RANKS:
            left_out += 1
            continue
        _add(ranks.setdefault(rank, {}), meanings, labels, value)
    return EnginePage(kind, model, _without_sole_rank(ranks), left_out)


def _kind_of(text: str) -> EngineKind | None:
    for name, _ in _lines(text):
        for prefix, kind in _PREFIXES:
            if name.startswith(prefix) and name in TABLES[kind].metrics:
                return kind
    return None


def _lines(text: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each line with a sample."""
    for number, line in enumerate(text.split("\n")):
        if number >= MAX_LINES:
            return
        if not line or line[0] == "#" or len(line) > MAX_LINE:
            continue
        yield re.split(r"[{ \t]", line, maxsplit=1)[0], line.rstrip("\r")


def _number(text: str) -> float | None:
    """Return a value that can be true; NaN, infinities and negative numbers are none."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) and 0 <= value <= LARGEST else None


def _model(labels: dict[str, str]) -> str:
    name = next((labels[label] for label in _MODEL_LABELS if labels.get(label)), "")
    return printable(name, MAX_NAME).strip()


def _rank(labels: dict[str, str], table: EngineTable) -> int | None:
    text = labels.get(table.rank, "") if table.rank else ""
    return int(text) if text.isascii() and text.isdigit() and len(text) <= 4 else None


def _add(
    values: Values, meanings: tuple[Meaning, ...], labels: dict[str, str], value: float
) -> None:
    """Add a sample; samples that differ in other labels, such as a reason, are added up.

    Of shares and of times of one step the largest counts.
    """
    for meaning in meanings:
        if meaning.only is not None and labels.get(meaning.only[0]) != meaning.only[1]:
            continue
        scaled, so_far = value * meaning.scale, values.get(meaning.value, 0.0)
        if meaning.value is Value.KV_USAGE:
            values[meaning.value] = max(so_far, min(scaled, 1.0))
        elif meaning.value is Value.STEP_LATEST:
            values[meaning.value] = max(so_far, scaled)
        else:
            values[meaning.value] = so_far + scaled


def _without_sole_rank(ranks: dict[int | None, Values]) -> dict[int | None, Values]:
    """Call the only rank None: an engine without data parallelism is one whole."""
    return {None: next(iter(ranks.values()))} if len(ranks) == 1 else ranks
