"""The runs behind the rows of the scoreboard, kept on disk until the code changes."""

import hashlib
import json
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.detection.clocks import run_clocks
from bench.detection.detectors import NAMES, run_threshold
from bench.detection.healthy import run_healthy, run_healthy_threshold
from bench.detection.live import run_verdict
from bench.detection.reality import KINDS, RANKS, run_kind
from bench.detection.recorded import ask, recorded_cases
from bench.detection.report import REAL, REALITY, Row
from bench.detection.scenarios import cases
from bench.detection.score import score
from bench.detection.traces import trace_rows
from bench.detection.world import World

ROOT = Path(__file__).parents[2]
GATED = (1, 2, 6, 7, 10, 14, REALITY)  # scenarios with a gate of their own


class Runner:
    """Runs of one seed; `only` names scenarios.

    A `short` run has only the verdict engine, on the worlds that have a gate.
    """

    def __init__(self, seed: int, only: Sequence[int], *, short: bool, fresh: bool) -> None:
        self.seed, self.fresh, self.short = seed, fresh, short
        self.only = only or (GATED if short else range(100))
        self.cache = (
            ROOT
            / ".cache"
            / "scoreboard"
            / code_digest()
            / (f"{seed}-short" if short else str(seed))
        )

    def rows(self, sizes: Sequence[int], node_hours: float) -> list[Row]:
        """Return all rows of this seed, without those of real traces."""
        rows: list[Row] = []
        for size in sizes:
            for number, name, make in cases(size):
                if number in self.only and not (self.short and _is_ungated(number, name)):
                    rows += self._kept(
                        f"{size}-{number}-{name}",
                        lambda s=size, n=number, v=name, m=make: self._case(s, n, v, m),
                    )
            for number, name, question in recorded_cases(size):
                if number in self.only:
                    rows += self._kept(
                        f"{size}-{number}-{name}",
                        lambda s=size, n=number, v=name, q=question: [
                            Row(n, v, s, "blame", ask(q, s, self.seed).as_json())
                        ],
                    )
        if 1 in self.only:
            rows += self._kept(f"healthy-{node_hours:.0f}", lambda: self._healthy(node_hours))
        if 10 in self.only:
            rows += self._kept("clocks", self._clocks)
        for name in KINDS if REALITY in self.only else ():
            rows += self._kept(
                f"real-{name}",
                lambda n=name: [Row(REALITY, n, RANKS, "verdict", run_kind(n, self.seed))],
            )
        return rows

    def _case(self, size: int, number: int, name: str, make: Callable[[int], World]) -> list[Row]:
        world = make(self.seed)
        outcomes = {"verdict": run_verdict(world, seed=self.seed)}
        if not self.short:
            outcomes |= {
                NAMES[0]: run_threshold(world, 2.0, 1),
                NAMES[1]: run_threshold(world, 3.5, 3),
            }
        return [
            Row(
                number,
                name,
                size,
                detector,
                score(world, outcomes[detector], detector == "verdict").as_json(),
            )
            for detector in NAMES
            if detector in outcomes
        ]

    def _healthy(self, node_hours: float) -> list[Row]:
        rules = [] if self.short else [(2.0, 1), (3.5, 3)]
        found = [run_healthy_threshold(k, confirmations, self.seed) for k, confirmations in rules]
        found.append(run_healthy(node_hours, self.seed, say))
        names = NAMES[-len(found) :]
        return [
            Row(1, "a healthy day", 0, name, each.as_json())
            for name, each in zip(names, found, strict=True)
        ]

    def _clocks(self) -> list[Row]:
        return [
            Row(10, variant, 8, "verdict", {"unchanged": same})
            for variant, same in run_clocks(self.seed)
        ]

    def _kept(self, key: str, work: Callable[[], list[Row]]) -> list[Row]:
        path = self.cache / (key.replace("/", "_").replace(" ", "_") + ".json")
        if path.exists() and not self.fresh:
            return [Row(*entry) for entry in json.loads(path.read_text())]
        started = time.monotonic()
        rows = work()
        say(f"seed {self.seed}, {key}: {time.monotonic() - started:.1f} s")
        self.cache.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(rows))
        return list(rows)


def _is_ungated(number: int, name: str) -> bool:
    """Tell whether a short run has no gate for a world: effects but 5 %, or a ramp of hours."""
    return (number == 2 and not name.startswith("5%")) or name.endswith(" h")


def real_rows() -> list[Row]:
    """Return the rows of real recorded jobs, which do not depend on the seed."""
    return [Row(REAL, what, size, "blame", figures) for what, size, figures in trace_rows()]


def code_digest() -> str:
    """Return a digest of the code; results of other code are not used again."""
    folders = [
        ROOT / "bench" / "detection",
        ROOT / "src" / "ingero" / "core",
        ROOT / "src" / "ingero" / "contract",
    ]
    digest = hashlib.blake2b(digest_size=6)
    for path in sorted(p for folder in folders for p in folder.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
