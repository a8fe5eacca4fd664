"""Series whose labels are known: their numbers become lines of a scrape.

A scrape of 10,000 nodes has 90,000 such series, so both steps have compiled twins.
"""

from collections.abc import Iterable
from typing import Final

from ingero.compiled import FAST_PATH, compiled_or_pure
from ingero.contract.exposition import render_value
from ingero.fleet.scrape.layout import Numbers

Place = tuple[str, str, str, str]  # name, kind and help of a family, and the rest of a line
Sample = tuple[int, str]  # (time in ns, rendered value)
# By name: kind, help, and samples by the rest of their line
Families = dict[str, tuple[str, str, dict[str, Sample]]]
_DIGITS: Final = "0123456789"


def add_known_purely(
    places: list[Place], numbers: Numbers, families: Families, total: int, most: int
) -> tuple[int, int]:
    """Add the series of a body; return how many there are now, and how many were left out.

    This is the definition of the compiled twin, and what runs without it. Of a series that is there
    already, the newer sample counts.
    """
    dropped, numbered = 0, iter(numbers)
    for (name, kind, help, tail), at_ns, value in zip(places, numbered, numbered, strict=True):
        family = families.get(name)
        if family is None:
            family = families[name] = (kind, help, {})
        samples = family[2]
        present = samples.get(tail)
        if present is None:
            if total >= most:
                dropped += 1
                continue
            total += 1
        elif present[0] > at_ns:
            continue
        text = repr(value)  # nearly always what `render_value` returns, which is slower
        if text[-2:] == ".0" or text[-1] not in _DIGITS:
            text = render_value(value)
        samples[tail] = (at_ns, text)  # type: ignore[assignment]  # times are whole numbers
    return total, dropped


def lines_of_purely(name: str, samples: Iterable[tuple[str, Sample]]) -> bytes:
    """Return the lines of some samples of one family."""
    return "".join([f"{name}{tail} {value}\n" for tail, (_, value) in samples]).encode()


add_known = compiled_or_pure(FAST_PATH, "add_known", add_known_purely)
lines_of = compiled_or_pure(FAST_PATH, "lines_of", lines_of_purely)
