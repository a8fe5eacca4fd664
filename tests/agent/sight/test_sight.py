"""A part without capabilities sees through the recorder what it may not read itself."""

import json
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.agent.causes.conftest import apart, start
from tests.support.waiting import until

from ingero.agent.causes.gpu_signals import GpuSignals
from ingero.agent.causes.look import RankProcess, Subject
from ingero.agent.engines.sight import SeenEngines
from ingero.agent.sight.asked import AskedSight
from ingero.agent.sight.messages import Answer, FindEngines
from ingero.agent.sight.server import MAX_AT_ONCE, SightServer
from ingero.children.capabilities import keep_capabilities
from ingero.contract.causes import Ask, CauseKind, PeerValue, Signal

__all__ = ["apart", "start"]  # fixtures
pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="without root there is nothing to drop")
# what the part that pushes does, in a process of its own
LOOK = """
import json, sys, threading
from pathlib import Path
from ingero.agent.causes.gpu_signals import GpuSignals
from ingero.agent.causes.look import RankProcess, Subject
from ingero.agent.engines.sight import SeenEngines
from ingero.agent.sight.asked import AskedSight
from ingero.agent.sight.own import OwnSight
from ingero.contract.causes import Ask

path, late, *peers = sys.argv[1:]
ask = Ask(episode="e", job="j", rank=0, cause_class="host", late=0.4, step_ms=30.0)
ranks = [RankProcess(int(pid), "j", rank) for rank, pid in enumerate([late, *peers])]
found = []
for sight in (OwnSight(), AskedSight(Path(path))):
    subject = Subject(ask, ranks[0], ranks[1:], GpuSignals())
    seen = sight.look(subject, threading.Event(), 4.0)
    found.append([[str(each.kind), each.text] for each in seen or []])
    found.append(sight.describe_waits(int(late)))
print(json.dumps(found))
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[SightServer]:
    serving = SightServer(tmp_path / "run" / "sight.sock")
    yield serving
    serving.close()
    assert not serving.path.exists()


def without_capabilities(*arguments: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", LOOK, *arguments],
        preexec_fn=lambda: keep_capabilities(()),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_lock_is_named_by_a_part_without_capabilities(
    start: Callable[..., int], server: SightServer
) -> None:
    peers = [start("healthy"), start("healthy")]
    pids = map(str, [start("lock"), *peers])
    own, own_waits, asked, asked_waits = without_capabilities(str(server.path), *pids)
    assert not any("rank_stand_in.py" in text for _, text in own), "it may read nothing"
    assert "rank_stand_in.py" not in own_waits
    kind, text = asked[0]
    assert kind == str(CauseKind.LOCK)
    assert "rank_stand_in.py" in text
    assert "rank_stand_in.py" in asked_waits


def test_signals_of_gpus_come_from_who_asks(start: Callable[..., int], server: SightServer) -> None:
    """NVML needs no rights, so the recorder does not open it."""

    class Slow(GpuSignals):
        def read(self, pid: int, local_rank: int | None, now_s: float) -> dict[Signal, float]:
            return {Signal.SM_CLOCK: 990.0} if pid == rank.pid else {}

    rank = RankProcess(start("healthy"), "j", 0)
    others = {str(Signal.SM_CLOCK): PeerValue(1980.0, 1.0, 7)}
    ask = Ask(episode="e", job="j", rank=0, late=0.4, cause_class="compute", peers=others)
    sight = AskedSight(server.path)
    subject = Subject(ask, rank, [], Slow(lambda: None))
    found = sight.look(subject, threading.Event(), 1.0)
    assert sight.problem == ""
    assert found is not None
    assert CauseKind.GPU_CLOCK in [each.kind for each in found]


def test_without_a_recorder_the_problem_is_named(tmp_path: Path) -> None:
    sight = AskedSight(tmp_path / "sight.sock")
    assert isinstance(sight.find_engines(), SeenEngines)
    assert "the recorder does not answer" in sight.problem
    serving = SightServer(tmp_path / "sight.sock")
    sight.count_gpus(os.getpid())
    assert sight.problem == "", "it is asked again every time"
    serving.close()


def test_wrong_requests_end_nothing(server: SightServer) -> None:
    for request in (b"", b"{}\n", b"nonsense\n", b'{"type": "look"}\n', b"x" * (2 << 20)):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
            client.connect(str(server.path))
            client.settimeout(10)
            try:
                client.sendall(request)
                client.shutdown(socket.SHUT_WR)
                assert client.recv(1) == b""
            except (BrokenPipeError, ConnectionResetError):
                pass
    assert AskedSight(server.path)._ask(FindEngines()) is not None


def test_many_at_once_are_refused_and_served_later(server: SightServer) -> None:
    waiting = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(MAX_AT_ONCE)]
    for client in waiting:
        client.connect(str(server.path))
    sight = AskedSight(server.path)
    until(lambda: sight.describe_waits(os.getpid()) is not None and sight.problem)
    for client in waiting:
        client.close()
    until(lambda: sight.describe_waits(os.getpid()) is not None and not sight.problem)
    assert sight._ask(FindEngines()) == Answer(engines=sight.find_engines())


# run as another user, whose processes root without capabilities may not read
POD = """
import json, subprocess, sys
from pathlib import Path
from ingero.agent.sight.asked import AskedSight
from ingero.agent.sight.own import OwnSight

path, pid = sys.argv[1:]
print(json.dumps([OwnSight().name_pod(int(pid)), AskedSight(Path(path)).name_pod(int(pid))]))
"""


def test_the_pod_of_a_process_of_another_user_is_named_by_the_recorder(
    server: SightServer,
) -> None:
    environ = os.environ | {"POD_NAME": "worker-0"}
    rank = subprocess.Popen(["sleep", "60"], env=environ, user=65534)
    try:
        done = subprocess.run(
            [sys.executable, "-c", POD, str(server.path), str(rank.pid)],
            preexec_fn=lambda: keep_capabilities(()),
            capture_output=True,
            text=True,
            check=False,
        )
    finally:
        rank.kill()
        rank.wait()
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == ["", "worker-0"]
