"""Which lines of a room each of its tests reaches, and how long each test takes."""

import importlib
import json
import os
import sys
import threading
import time
from collections.abc import Collection
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

import pytest
from tests.mutation.mutants import Mutant
from tests.mutation.rooms import SOURCE, Room

_SLOWEST_S = 6.0  # slower tests are left out


class Tracer:
    """Notes the lines that run, of some files only."""

    def __init__(self, files: list[str]) -> None:
        self._files = {str(SOURCE / file): file for file in files}
        self.lines: dict[str, set[int]] = {}

    def start(self) -> None:
        self.lines = {}
        threading.settrace(self._trace)
        sys.settrace(self._trace)

    def stop(self) -> None:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]

    def _trace(self, frame: FrameType, event: str, _: object) -> object:
        file = self._files.get(frame.f_code.co_filename)
        if file is None:
            return None
        if frame.f_code.co_name != "<module>":
            self.lines.setdefault(file, set()).add(frame.f_lineno)
        return self._trace


@dataclass(frozen=True, slots=True)
class Measured:
    """A test with its usual time and the lines that it reaches, by file."""

    name: str
    seconds: float
    lines: dict[str, frozenset[int]]

    def reaches(self, mutant: Mutant) -> bool:
        """Return whether the test runs what is changed; of a module, whether it runs any of it."""
        reached = self.lines.get(mutant.file, frozenset())
        return is_reached(mutant, reached) if mutant.is_inside else bool(reached)


def is_reached(mutant: Mutant, lines: Collection[int]) -> bool:
    """Return whether what is changed is on one of these lines."""
    first, last = mutant.lines
    return any(line in lines for line in range(first, last + 1))


def measure(session: pytest.Session, folder: Path, room: Room) -> list[Measured]:
    """Return the tests, fastest first; end if one of them fails without any change."""
    found = folder / "measured.json"
    pid = os.fork()
    if not pid:
        try:
            watch = _Watch(room)
            session.config.pluginmanager.register(watch)
            watch.run_all(session)
            found.write_text(json.dumps(watch.answer()))
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    if not found.exists():
        sys.exit(f"the tests of {room.name} ended the process")
    answer = json.loads(found.read_text())
    if answer["failed"]:
        sys.exit(f"without any change these tests fail: {', '.join(answer['failed'])}")
    for name in answer["modules"]:
        with suppress(Exception):  # what tests import late is imported once here, if it can be
            importlib.import_module(name)
    tests = [
        Measured(name, seconds, {file: frozenset(lines) for file, lines in reached.items()})
        for name, seconds, reached in answer["tests"]
        if seconds <= _SLOWEST_S
    ]
    return sorted(tests, key=lambda test: test.seconds)


class _Watch:
    """A pytest plugin that runs every test twice: for its lines, then for its time."""

    def __init__(self, room: Room) -> None:
        self._tracer = Tracer(room.files())
        self._lines: dict[str, dict[str, set[int]]] = {}
        self._times: dict[str, float] = {}
        self._failed: set[str] = set()
        self._modules = set(sys.modules)

    def run_all(self, session: pytest.Session) -> None:
        """The second time fastest first, as mutants are tried."""
        self._run(session.items, is_traced=True)
        self._run(sorted(session.items, key=lambda item: self._times[item.nodeid]), is_traced=False)

    def _run(self, items: list[pytest.Item], *, is_traced: bool) -> None:
        for item, following in zip(items, [*items[1:], None], strict=True):
            if is_traced:
                self._tracer.start()
            began_s = time.process_time()
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            self._times[item.nodeid] = time.process_time() - began_s
            if is_traced:
                self._tracer.stop()
                self._lines[item.nodeid] = self._tracer.lines

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed:
            self._failed.add(report.nodeid)

    def answer(self) -> dict[str, object]:
        """Return what was seen."""
        return {
            "failed": sorted(self._failed),
            "modules": sorted(set(sys.modules) - self._modules),
            "tests": [
                (name, self._times[name], {file: sorted(seen) for file, seen in lines.items()})
                for name, lines in self._lines.items()
            ],
        }
