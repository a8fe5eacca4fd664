"""Engines are found by their processes, watched, and forgotten when they end."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.waiting import until

from ingero.agent.engines import find as finding
from ingero.agent.engines import watch as watching
from ingero.agent.engines.engine import Engine
from ingero.agent.engines.find import Candidate, EngineFinder
from ingero.agent.engines.names import CommandLine
from ingero.agent.engines.ports import Listening
from ingero.agent.engines.ready import probe_engine
from ingero.agent.engines.watch import EngineWatch
from ingero.agent.engines.workers import worker_processes
from ingero.contract.measurements.engines import decode_engines
from ingero.contract.otlp.values import MetricsRequest
from ingero.contract.types import Identity
from ingero.contract.verdict import Verdict, VerdictState
from ingero.core.health.modes import PushOutcome
from ingero.sim.inference.engine import Load
from ingero.sim.inference.replicas import EngineProcess
from ingero.transport.otlp.client import PushReply

BUSY = Load(running=4, step_s=0.01)


class Client:
    """Keeps what is pushed and answers with a verdict."""

    def __init__(self) -> None:
        self.requests: list[MetricsRequest] = []
        self.verdict = Verdict(episode="e", state=VerdictState.STRAGGLER, node="n", since=1.0)

    async def push(self, request: MetricsRequest) -> PushReply:
        self.requests.append(request)
        return PushReply(outcome=PushOutcome.OK, verdicts=(self.verdict,))


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[EngineProcess]:
    with EngineProcess(tmp_path, "llama") as process:
        yield process


def found(watch: EngineWatch, process: EngineProcess) -> Engine | None:
    return next((e for (pid, _), e in watch.engines.items() if pid == process.pid), None)


async def test_an_engine_is_found_measured_and_reported(engine: EngineProcess) -> None:
    """F165: by its process, with the port that the kernel chose."""
    engine.set_load(BUSY)
    client, received = Client(), list[Verdict]()
    watch = EngineWatch(client, Identity(node="n"), received.extend, patience_s=20.0)
    await watch.round(1_000.0)
    until(lambda: probe_engine(engine.port, 1.0).is_ready)
    await watch.round(1_002.0)
    mine = found(watch, engine)
    assert mine is not None
    report = mine.reports[None]
    assert (report.running, report.stalled_s, report.step_tokens) == (4.0, None, 4.0)
    assert report.step_s == pytest.approx(0.01, rel=0.5)
    sent = [each for part in client.requests for each in decode_engines(part)]
    assert {each.engine.model for each in sent if each.engine.pid == engine.pid} == {"llama"}
    assert received[0] == client.verdict


async def test_a_stopped_worker_stalls_its_engine_until_it_goes_on(engine: EngineProcess) -> None:
    """F159: named with the process and where it waits, although /health says 200."""
    engine.set_load(BUSY)
    client = Client()
    watch = EngineWatch(client, Identity(node="n"), patience_s=20.0)
    await watch.round(1_000.0)
    until(lambda: probe_engine(engine.port, 1.0).is_ready)
    engine.hang()
    until(lambda: not probe_engine(engine.port, 0.3).is_ready)
    await watch.round(1_001.0)
    await watch.round(1_005.5)
    pushes = len(client.requests)
    await watch.round(1_006.5)
    assert len(client.requests) == pushes + 1  # at once, before the next push is due
    mine = found(watch, engine)
    assert mine is not None
    report = mine.reports[None]
    assert (report.stalled_s, report.health) == (5.5, 200)
    assert f"VLLM::Worker (pid {engine.worker}) is stopped by a signal" in report.waits
    assert not watch.is_ready(engine.port, 1_006.5)
    engine.resume()
    until(lambda: probe_engine(engine.port, 1.0).is_ready)
    await watch.round(1_007.0)
    assert mine.reports[None].stalled_s is None
    assert watch.is_ready(engine.port, 1_007.0)


async def test_an_idle_engine_is_ready_and_never_stalled(engine: EngineProcess) -> None:
    """F160."""
    watch = EngineWatch(None, Identity(node="n"), patience_s=20.0)
    await watch.round(1_000.0)
    await watch.round(2_000.0)
    mine = found(watch, engine)
    assert mine is not None
    assert mine.reports[None].stalled_s is None
    assert watch.is_ready(engine.port, 2_000.0)
    assert not watch.is_ready(1, 2_000.0)
    assert probe_engine(engine.port, 0.0).why == "vllm is idle"


async def test_an_engine_that_ends_is_removed_and_found_again_on_another_port(
    engine: EngineProcess,
) -> None:
    """F165: must 54, restart and port change."""
    watch = EngineWatch(None, Identity(node="n"), patience_s=20.0)
    await watch.round(1_000.0)
    before = (engine.pid, engine.port)
    assert before in watch.engines
    engine.stop()
    await watch.round(1_001.0)
    assert before not in watch.engines
    engine.port = 0
    engine.start()
    await watch.round(1_001.5)  # an engine is gone, so that all are looked for at once
    await watch.round(1_010.0)
    assert (engine.pid, engine.port) in watch.engines
    assert engine.port != before[1]


def test_a_child_leads_to_the_process_with_the_port(engine: EngineProcess) -> None:
    candidates = {each.pid: each for each in EngineFinder().find()}
    assert [at.port for at in candidates[engine.pid].ports] == [engine.port]
    assert engine.worker in worker_processes(engine.pid)
    assert engine.worker not in candidates


def test_processes_that_are_no_engines_are_looked_at_rarely(
    monkeypatch: pytest.MonkeyPatch, engine: EngineProcess
) -> None:
    """A node may have thousands of processes; an engine is looked at in every round."""
    looked: list[int] = []
    monkeypatch.setattr(finding, "process_ids", lambda: [os.getpid(), engine.pid])
    inner = finding.running_since
    monkeypatch.setattr(finding, "running_since", lambda pid: looked.append(pid) or inner(pid))
    finder = EngineFinder()
    for _ in range(12):
        assert [each.pid for each in finder.find()] == [engine.pid]
    assert looked.count(os.getpid()) == 3
    assert looked.count(engine.pid) >= 12


async def test_the_ranks_of_an_engine_are_a_job_of_their_own(
    engine: EngineProcess, tmp_path: Path
) -> None:
    """Two engines on a node both have a rank 0, and neither sets a job."""
    (tmp_path / "other").mkdir()
    with EngineProcess(tmp_path / "other", "phi") as other:
        watch = EngineWatch(None, Identity(node="n"), patience_s=20.0)
        await watch.round(1_000.0)
        assert watch.job_of(engine.worker) == f"llama:{engine.port}"
        assert watch.job_of(other.worker) == f"phi:{other.port}"
        assert watch.job_of(1) is None


async def test_a_stranger_on_the_port_of_an_engine_is_not_one(
    monkeypatch: pytest.MonkeyPatch, engine: EngineProcess
) -> None:
    """A process that only looks like one is asked again after a minute, not every round."""
    asked: list[int] = []
    monkeypatch.setattr(watching, "find_page", lambda candidate, at: asked.append(at.port))
    watch = EngineWatch(None, Identity(node="n"), patience_s=20.0)
    candidate = Candidate(
        engine.pid, 1, (Listening(engine.port, "127.0.0.1"),), CommandLine(), False
    )
    monkeypatch.setattr(EngineFinder, "find", lambda finder: [candidate])
    for second in range(0, 59, 5):
        await watch.round(1_000.0 + second)
    assert asked == [engine.port]
    await watch.round(1_060.0)
    assert asked == [engine.port] * 2
    assert watch.engines == {}


async def test_the_number_of_engines_is_bounded(
    monkeypatch: pytest.MonkeyPatch, engine: EngineProcess
) -> None:
    monkeypatch.setattr(watching, "MAX_ENGINES", 0)
    watch = EngineWatch(None, Identity(node="n"), patience_s=20.0)
    await watch.round(1_000.0)
    assert watch.engines == {}
    assert watch.counters.refused >= 1


def test_a_probe_says_why_an_engine_is_not_ready(engine: EngineProcess) -> None:
    """F166: without an agent, within the time that is given."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        assert probe_engine(port, 0.1).why == f"port {port} does not answer"
    assert probe_engine(port, 0.1).why == f"nothing listens on port {port}"
    engine.set_load(BUSY)
    until(lambda: probe_engine(engine.port, 1.0).why == "vllm makes steps")
    engine.hang()
    why = "4 requests run or wait, and no step within 0.3 s"
    until(lambda: probe_engine(engine.port, 0.3).why == why)
