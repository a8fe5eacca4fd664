"""Which lines of a room each of its tests reaches, and how long each test takes."""

import hashlib
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
from typing import Any

import pytest
from tests.mutation.mutants import Mutant
from tests.mutation.rooms import SOURCE, Room

_SLOWEST_S = 6.0  # slower tests are left out
_FAST_S = 0.3  # tests below it while traced are not timed again


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


def measure(session: pytest.Session, folder: Path, room: Room, cache: Path) -> list[Measured]:
    """Return the tests, fastest first; end if one of them fails without any change.

    What `cache` holds of tests whose file has not changed is used, unless the room has changed.
    """
    found, known = folder / "measured.json", _known(session, room, cache)
    pid = os.fork()
    if not pid:
        try:
            watch = _Watch(room)
            session.config.pluginmanager.register(watch)
            watch.run_all([item for item in session.items if item.nodeid not in known])
            found.write_text(json.dumps(watch.answer()))
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    if not found.exists():
        sys.exit(f"the tests of {room.name} ended the process")
    answer = json.loads(found.read_text())
    if answer["failed"]:
        sys.exit(f"without any change these tests fail: {', '.join(answer['failed'])}")
    known |= {name: (*rest,) for name, *rest in answer["tests"]}
    cache.write_text(json.dumps({"state": _state(room, session), "tests": known}))
    for name in answer["modules"]:
        with suppress(Exception):  # what tests import late is imported once here, if it can be
            importlib.import_module(name)
    tests = [
        Measured(name, seconds, {file: frozenset(lines) for file, lines in reached.items()})
        for name, (seconds, reached) in known.items()
        if seconds <= _SLOWEST_S
    ]
    return sorted(tests, key=lambda test: test.seconds)


def _known(session: pytest.Session, room: Room, cache: Path) -> dict[str, tuple[Any, ...]]:
    """Return what was measured before of tests that are still the same."""
    if not cache.exists():
        return {}
    before, now = json.loads(cache.read_text()), _state(room, session)
    if before["state"]["room"] != now["room"]:
        return {}
    items = {item.nodeid: str(item.path) for item in session.items}
    return {
        name: tuple(measured)
        for name, measured in before["tests"].items()
        if name in items and before["state"].get(items[name]) == now[items[name]]
    }


def _state(room: Room, session: pytest.Session) -> dict[str, str]:
    """Return the content of the room and of each test file, in short."""

    def digest(*paths: Path) -> str:
        return hashlib.sha256(b"".join(path.read_bytes() for path in paths)).hexdigest()[:16]

    files = {item.path for item in session.items}
    return {str(path): digest(path) for path in files} | {
        "room": digest(*(SOURCE / file for file in room.files()))
    }


class _Watch:
    """A pytest plugin that runs tests for their lines and for their time."""

    def __init__(self, room: Room) -> None:
        self._tracer = Tracer(room.files())
        self._lines: dict[str, dict[str, set[int]]] = {}
        self._times: dict[str, float] = {}
        self._failed: set[str] = set()
        self._modules = set(sys.modules)

    def run_all(self, items: list[pytest.Item]) -> None:
        """Run each test for its lines, and those that seem slow once more for their time."""
        self._run(items, is_traced=True)
        slow = [item for item in items if self._times[item.nodeid] > _FAST_S]
        self._run(sorted(slow, key=lambda item: self._times[item.nodeid]), is_traced=False)

    def _run(self, items: list[pytest.Item], *, is_traced: bool) -> None:
        for item, following in zip(items, [*items[1:], None], strict=False):
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
