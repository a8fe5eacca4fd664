"""A pytest plugin that tries mutants instead of running the tests once.

All test modules are imported first. Each mutant then gets a fork of that process, in which the
tests that reach the changed lines run until one fails: the most promising first, which are those
that have noticed most mutants of this file, then the fastest.
"""

import contextlib
import gc
import os
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest
from hypothesis import Phase, settings
from tests.mutation.kept import Kept
from tests.mutation.limits import HUNG, limit, silence
from tests.mutation.lines import Measured, Tracer, is_reached, measure
from tests.mutation.mutants import Mutant
from tests.mutation.patch import exchange_functions, functions_by_file, import_again
from tests.mutation.rooms import ROOT, Room

OPTIONS = (
    "-q", "-s", "-p", "no:xdist", "-o", "timeout=0",
    "-W", "ignore::pytest.PytestAssertRewriteWarning",
)  # fmt: skip
_KILLED = 1
MAX_CRASHES = 5


@dataclass
class Trials:
    """Tries mutants with the tests that pytest has collected, a few at the same time."""

    room: Room
    kept: Kept
    mutants: list[Mutant]
    end_s: float
    workers: int
    tests: list[str] | None = None  # only these, for what survived the others
    killed: dict[Mutant, str] = field(default_factory=dict)  # with the test that noticed
    survived: list[Mutant] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Take over what is known from before: the killed, and survivors that nobody tries."""
        outcomes = {mutant: self.kept.outcome(mutant) for mutant in self.mutants}
        self.killed = {mutant: test for mutant, test in outcomes.items() if test}
        before = [mutant for mutant, test in outcomes.items() if test == ""]
        untried = [mutant for mutant, test in outcomes.items() if test is None]
        self.mutants, self._before = untried + before, set(before)
        if self.tests:
            self.mutants, self.room = before, replace(self.room, tests=tuple(self.tests))

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        left_out = self.room.without
        items[:] = [item for item in items if not left_out or left_out not in item.nodeid]

    @pytest.hookimpl(wrapper=True)
    def pytest_collection(self) -> Generator[None, object, object]:
        """Note what already runs while tests are imported, for example to make parameters."""
        tracer = Tracer(self.room.files())
        tracer.start()
        try:
            return (yield)
        finally:
            tracer.stop()
            self._imported = tracer.lines

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        if session.testsfailed or not session.items:
            sys.exit(f"the tests of {self.room.name} cannot be imported")
        with tempfile.TemporaryDirectory() as folder:
            self._folder = Path(folder)
            for item in session.items:
                use_few_examples(item)
            self._session = session
            self._crashed = 0
            cache = self._folder / "measured" if self.tests else self.kept.measured
            self._tests = measure(session, self._folder, self.room, cache)
            self._noticed: Counter[tuple[str, str, str]] = Counter()
            for mutant, test in self.killed.items():
                self._notices(mutant, test)
            gc.collect()
            self._functions = functions_by_file()
            gc.freeze()  # a fork then copies less
            self._try_all()
            tried = {*self.killed, *self.survived}
            self.survived += [mutant for mutant in self._before if mutant not in tried]
        return True

    def _try_all(self) -> None:
        waiting = iter(self.mutants)
        running: dict[int, Mutant] = {}
        while True:
            while len(running) < self.workers and time.monotonic() < self.end_s:
                mutant = next(waiting, None)
                if mutant is None:
                    break
                tests = self._chosen(mutant)
                if tests:
                    running[self._fork(mutant, tests)] = mutant
                else:
                    self._survives(mutant)
            if not running:
                return
            pid, status = os.wait()
            if pid in running:
                self._note(running.pop(pid), pid, status)

    def _chosen(self, mutant: Mutant) -> list[Measured]:
        """Return the tests that may notice a mutant, the most promising first."""
        reaching = [test for test in self._tests if test.reaches(mutant)]
        reaching.sort(key=lambda test: (*self._promise(mutant, test.name), test.seconds))
        if self._acts_early(mutant):  # a constant can be used anywhere
            names = {test.name for test in reaching}
            reaching += [test for test in self._tests if test.name not in names]
        chosen, sum_s = [], 0.0
        for test in reaching:
            sum_s += test.seconds
            if sum_s <= self.room.most_test_s:
                chosen.append(test)
        return chosen

    def _promise(self, mutant: Mutant, test: str) -> tuple[int, int]:
        """Return what is lowest for tests that noticed much, in this function or in its file."""
        by_function, by_file = (mutant.file, mutant.function, test), (mutant.file, "", test)
        return -self._noticed[by_function], -self._noticed[by_file]

    def _notices(self, mutant: Mutant, test: str) -> None:
        self._noticed.update([(mutant.file, mutant.function, test), (mutant.file, "", test)])

    def _acts_early(self, mutant: Mutant) -> bool:
        """Return whether modules must be imported again for the change to act everywhere."""
        imported = self._imported.get(mutant.file, set())
        return not mutant.is_inside or is_reached(mutant, imported)

    def _fork(self, mutant: Mutant, tests: list[Measured]) -> int:
        pid = os.fork()
        if pid:
            return pid
        folder = self._folder / str(os.getpid())
        noting = Noting(tests, folder)
        try:
            silence(folder)
            self._run(mutant, noting, folder)
        except BaseException:  # noqa: BLE001 - pytest itself is broken, by a closed output for example
            noting.is_failed = True
        finally:
            os._exit(_KILLED if noting.is_failed else 0)

    def _run(self, mutant: Mutant, noting: "Noting", folder: Path) -> None:
        if not self._acts_early(mutant) and exchange_functions(mutant, self._functions):
            self._session.config.pluginmanager.register(noting)
            noting.run(self._session)
        else:
            import_again(mutant)
            files = sorted({str(ROOT / test.name.partition("::")[0]) for test in noting.tests})
            pytest.main([*OPTIONS, f"--basetemp={folder / 'again'}", *files], plugins=[noting])
            noting.is_failed |= not noting.has_run

    def _note(self, mutant: Mutant, pid: int, status: int) -> None:
        """Record what became of a mutant, and end what its tests have left running."""
        folder = self._folder / str(pid)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
        last = (folder / "last").read_text() if (folder / "last").exists() else "import"
        shutil.rmtree(folder, ignore_errors=True)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) != signal.SIGPROF:
            self._crashed += 1  # says nothing about the tests: packages were changed meanwhile
            if self._crashed > MAX_CRASHES:
                sys.exit(f"{self._crashed} trials crashed; start again (--resume)")
        elif os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == HUNG:
            self._dies(mutant, f"time limit in {last}")
        elif os.WEXITSTATUS(status) == _KILLED:
            self._dies(mutant, last)
            self._notices(mutant, last)
        else:
            self._survives(mutant)

    def _dies(self, mutant: Mutant, test: str) -> None:
        self.killed[mutant] = test
        self.kept.add(mutant, test)

    def _survives(self, mutant: Mutant) -> None:
        self.survived.append(mutant)
        self.kept.add(mutant, "")


class Noting:
    """A pytest plugin that runs chosen tests until one fails, each with a time limit."""

    def __init__(self, tests: list[Measured], folder: Path) -> None:
        self.tests, self._folder = tests, folder
        self.is_failed = self.has_run = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        for item in session.items:
            use_few_examples(item)
        self.run(session)
        return True

    def run(self, session: pytest.Session) -> None:
        """Run the tests in their order."""
        session.config._tmp_path_factory._basetemp = self._folder / "tmp"  # type: ignore[attr-defined]
        self._folder.joinpath("tmp").mkdir()
        by_name = {item.nodeid: item for item in session.items}
        chosen = [(by_name.get(test.name), test) for test in self.tests]
        for (item, test), (following, _) in zip(chosen, [*chosen[1:], (None, None)], strict=True):
            (self._folder / "last").write_text(test.name)
            if item is None:  # a changed constant has renamed or removed it
                self.is_failed = True
            else:
                limit(test.seconds)
                item.ihook.pytest_runtest_protocol(item=item, nextitem=following)
            if self.is_failed:
                break
        self.has_run = True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.is_failed |= report.failed


def use_few_examples(item: pytest.Item) -> None:
    """Let hypothesis try fewer examples than usual, and not look for simpler ones."""
    own = getattr(getattr(item, "obj", None), "_hypothesis_internal_use_settings", None)
    phases = (Phase.explicit, Phase.generate)
    settings.register_profile(
        "mutants", settings.get_profile("ci"), max_examples=25, phases=phases, database=None
    )
    settings.load_profile("mutants")
    if own is not None:
        few = settings(own, max_examples=min(25, own.max_examples), phases=phases, database=None)
        item.obj._hypothesis_internal_use_settings = few  # type: ignore[attr-defined]
