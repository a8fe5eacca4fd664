"""Processes of other users that look like engines: slow, silent, many, with long pages."""

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from ingero.agent.engines import find as finding
from ingero.agent.engines import watch as watching
from ingero.agent.engines.engine import Engine, EnginePlace
from ingero.agent.engines.find import MAX_CANDIDATES, MAX_OF_USER, MAX_PORTS, EngineFinder
from ingero.agent.engines.names import CommandLine
from ingero.agent.engines.ports import Listening
from ingero.agent.engines.shares import LONGEST_PAUSE_S, READERS, crowd, pause_s
from ingero.agent.engines.watch import MAX_ENGINES, EngineWatch
from ingero.contract.measurements.engines import EngineKind
from ingero.contract.types import Identity
from ingero.core.inference.page import EnginePage

SERVER = CommandLine(EngineKind.VLLM, is_server=True, port=8000)


def test_a_pause_keeps_a_user_within_its_readers_and_cpu() -> None:
    assert pause_s(0.005, 0.002, 8) < watching.ROUND_S, "usual pages are read every round"
    assert pause_s(2.0, 0.0, 64) == 32.0
    assert 64 * 2.0 / pause_s(2.0, 0.0, 64) <= READERS
    assert pause_s(0.3, 0.25, 20) == 50.0
    assert pause_s(2.0, 2.0, 64) == LONGEST_PAUSE_S


def test_who_has_most_makes_room_for_who_has_fewer() -> None:
    assert crowd([1, 1, 1, 2], 2) == 1
    assert crowd([1, 1, 1, 2], 1) is None
    assert crowd([1, 1, 2], 2) is None
    assert crowd([], 2) is None


@pytest.fixture
def many(monkeypatch: pytest.MonkeyPatch) -> dict[int, int]:
    """Processes by id, with their user; each listens on its own port like a server."""
    processes: dict[int, int] = {}
    monkeypatch.setattr(finding, "process_ids", lambda: list(processes))
    monkeypatch.setattr(finding, "running_since", lambda pid: 1)
    monkeypatch.setattr(finding, "mapped_pages", lambda pid: 0)
    monkeypatch.setattr(finding, "command_line_of", lambda pid: SERVER)
    monkeypatch.setattr(finding, "user_of", processes.__getitem__)
    monkeypatch.setattr(finding, "parent_of", lambda pid: None)

    class Ports:
        denied = frozenset[int]()

        def of_process(self, pid: int, may_be_asked: Any) -> list[Listening]:
            return [Listening(port, "127.0.0.1") for port in range(20_000, 20_100)]

    monkeypatch.setattr(finding, "PortTable", Ports)
    return processes


def test_candidates_take_turns_and_leave_room_for_other_users(many: dict[int, int]) -> None:
    many |= dict.fromkeys(range(100, 100 + 5 * MAX_OF_USER), 1)
    many[9999] = 2
    finder, seen = EngineFinder(), set[int]()
    for number in range(5):
        found = finder.find()
        assert sum(each.user == 1 for each in found) == MAX_OF_USER
        assert number > 0 or 9999 in {each.pid for each in found}
        assert all(len(each.ports) == MAX_PORTS for each in found)
        seen |= {each.pid for each in found if each.user == 1}
    assert len(seen) == 5 * MAX_OF_USER, "nobody is left out for ever"
    many |= {pid: pid for pid in range(20_000, 20_000 + 2 * MAX_CANDIDATES)}
    assert len(finder.find()) == MAX_CANDIDATES


def engine_of(user: int, number: int) -> Engine:
    place = EnginePlace(number, 1, Listening(8000, "127.0.0.1"), "/", EngineKind.VLLM, 0, user)
    return Engine(place, "m", lambda: ("", None), answered_s=0.0)


async def test_a_full_table_gives_a_place_to_a_user_without_engines(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    watch = EngineWatch(None, Identity(node="n"))
    watch.engines = {(n, 8000): engine_of(1, n) for n in range(MAX_ENGINES)}
    page = EnginePage(EngineKind.VLLM)
    monkeypatch.setattr(watching, "find_page", lambda candidate, at: ("/metrics", page))
    for pid, user, refused in ((7001, 2, 0), (7002, 2, 0), (7003, 1, 1)):
        at = (Listening(8000, "127.0.0.1"),)
        await watch._try(finding.Candidate(pid, 1, at, SERVER, False, user), 0.0)
        assert (len(watch.engines), watch.counters.refused) == (MAX_ENGINES, refused)
    assert (MAX_ENGINES - 1, 8000) not in watch.engines, "the newest of the crowd is dropped"


@pytest.fixture
def silent() -> Iterator[int]:
    """A port that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=64) as server:
        yield server.getsockname()[1]


async def test_engines_that_do_not_answer_delay_nobody_elses(
    silent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """40 slow engines of one user, and one of another whose pages come at once."""
    monkeypatch.setattr(watching, "running_since", lambda pid: 1)
    watch = EngineWatch(None, Identity(node="n"), patience_s=0.05)
    watch._find_at_s = 1e9
    for number in range(40):
        place = EnginePlace(
            number, 1, Listening(silent, "127.0.0.1"), "/", EngineKind.VLLM, 0, user=1
        )
        watch.engines[number, silent] = Engine(place, "m", lambda: ("", None), answered_s=0.0)
    watch.engines[99, 8000] = engine_of(2, 99)
    read, reading = watching.read_place, list[int]()
    at_once = threading.Lock()

    def counted(place: EnginePlace) -> EnginePage | None:
        if place.user == 2:
            return EnginePage(EngineKind.VLLM, "m", {None: {}})
        with at_once:
            reading.append(place.pid)
        return read(place)

    monkeypatch.setattr(watching, "read_place", counted)
    began_s = time.monotonic()
    for number in range(4):
        await watch.round(1.0 + number)
        await asyncio.sleep(0.05)
        assert watch.engines[99, 8000].answered_s == 1.0 + number
    assert time.monotonic() - began_s < 2.0, "a silent engine is given two seconds"
    assert len(reading) <= READERS
    for task in watch._reading.values():
        task.cancel()
    watch._pool.shutdown(wait=False, cancel_futures=True)
