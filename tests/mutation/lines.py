"""Which lines of a room each of its tests reaches, and how long each test takes."""

import hashlib
import importlib
import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Collection, Generator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from tests.mutation.mutants import Mutant
from tests.mutation.rooms import SOURCE, Room

_SLOWEST_S = 6.0  # slower tests are left out
_ENOUGH = 3000  # events of one function in one test without a new line


class Tracer:
    """Notes the lines that run, of some files only.

    A function that has shown nothing new for long is left alone, since tracing is slow. A line
    that is missed by this counts as not reached, so that no mutant seems killed because of it.
    """

    def __init__(self, files: list[str]) -> None:
        self._files = {str(SOURCE / file): file for file in files}
        self.lines: dict[str, set[int]] = {}

    def start(self) -> None:
        self.lines = {}
        self._tired: dict[int, int] = {}  # by function: the events since a new line was seen
        threading.settrace(self._trace)
        sys.settrace(self._trace)

    def stop(self) -> None:
        sys.settrace(None)
        threading.settrace(None)  # type: ignore[arg-type]

    def _trace(self, frame: FrameType, event: str, _: object) -> object:
        code = frame.f_code
        file = self._files.get(code.co_filename)
        if file is None or code.co_name == "<module>":
            return None
        lines = self.lines.setdefault(file, set())
        if frame.f_lineno not in lines:
            lines.add(frame.f_lineno)
            self._tired[id(code)] = 0
            return self._trace
        events = self._tired[id(code)] = self._tired.get(id(code), 0) + 1
        return self._trace if events < _ENOUGH else None


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


class TooSlow(BaseException):
    """A test takes longer than any that is used."""


def _give_up(*_: object) -> None:
    raise TooSlow


class _Watch:
    """A pytest plugin that runs tests for their lines and for their time."""

    def __init__(self, room: Room) -> None:
        self._tracer, self._most_s = Tracer(room.files()), min(_SLOWEST_S, room.most_test_s)
        self._lines: dict[str, dict[str, set[int]]] = {}
        self._times: dict[str, float] = {}
        self._failed: set[str] = set()
        self._slow: set[str] = set()
        self._modules = set(sys.modules)

    def run_all(self, items: list[pytest.Item]) -> None:
        """Run each test once, for its lines and its time, and give up those that are too slow."""
        signal.signal(signal.SIGPROF, _give_up)
        for item, following in zip(items, [*items[1:], None], strict=False):
            signal.setitimer(signal.ITIMER_PROF, self._most_s)
            self._tracer.start()
            began_s = time.process_time()
            item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            self._times[item.nodeid] = time.process_time() - began_s
            self._tracer.stop()
            signal.setitimer(signal.ITIMER_PROF, 0)
            self._lines[item.nodeid] = self._tracer.lines

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(
        self, item: pytest.Item, call: pytest.CallInfo[None]
    ) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        if call.excinfo is not None and call.excinfo.errisinstance(TooSlow):
            self._slow.add(item.nodeid)
        elif report.failed:
            self._failed.add(item.nodeid)
        return report

    def answer(self) -> dict[str, object]:
        """Return what was seen."""
        return {
            "failed": sorted(self._failed - self._slow),
            "modules": sorted(set(sys.modules) - self._modules),
            "tests": [
                (name, self._seconds(name), {file: sorted(seen) for file, seen in lines.items()})
                for name, lines in self._lines.items()
            ],
        }

    def _seconds(self, name: str) -> float:
        return math.inf if name in self._slow else self._times[name]
