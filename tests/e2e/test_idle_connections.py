"""1,500 idle connections: Fleet raises its limit on open files, and pushes keep working."""

import contextlib
import resource
import socket
import subprocess
from collections.abc import Iterator

import grpc
import pytest
from tests.support.fleet_process import fleet_started_by, push
from tests.support.pushes import protobuf
from tests.support.waiting import PATIENCE_S

from ingero.contract.otlp.values import MetricsRequest
from ingero.transport.otlp.server_grpc import PATHS

IDLE = 1_500
pytestmark = pytest.mark.e2e
START = """
import resource, runpy, sys
soft, hard = int(sys.argv.pop(1)), int(sys.argv.pop(1))
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
runpy.run_module("ingero.cli.commands.services.fleet", run_name="__main__")
"""


@pytest.fixture(autouse=True)
def enough_files() -> Iterator[None]:
    """This process holds the other ends."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = IDLE + 500
    if hard < 2 * needed:
        pytest.skip(f"needs {2 * needed} open files; the hard limit is {hard}")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@contextlib.contextmanager
def fleet(soft: int, hard: int) -> Iterator[tuple[subprocess.Popen[str], dict[str, str]]]:
    with fleet_started_by("-c", START, str(soft), str(hard)) as started:
        yield started


@contextlib.contextmanager
def idle_connections(address: str) -> Iterator[list[socket.socket]]:
    host, _, port = address.rpartition(":")
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(socket.create_connection((host, int(port)), PATIENCE_S))
            for _ in range(IDLE)
        ]


def push_by_grpc(address: str) -> bytes:
    with grpc.insecure_channel(address) as channel:
        call = channel.unary_unary(PATHS[MetricsRequest])
        reply: bytes = call(protobuf("g", 0.9), timeout=PATIENCE_S, wait_for_ready=True)
        return reply


def limits_of(pid: int) -> int:
    return resource.prlimit(pid, resource.RLIMIT_NOFILE)[0]


def test_a_soft_limit_of_1024_is_raised_and_idle_connections_stay() -> None:
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with fleet(1024, hard) as (process, addresses):
        assert limits_of(process.pid) > 1024
        with idle_connections(addresses["http"]) as held, idle_connections(addresses["grpc"]):
            for score in (0.5, 0.6):
                assert push(addresses["http"], "a", score)[0] == 200
            push_by_grpc(addresses["grpc"])
            held[0].settimeout(0.2)
            with pytest.raises(TimeoutError):
                held[0].recv(1)


def test_where_the_hard_limit_is_low_it_says_so_and_pushes_still_work() -> None:
    with fleet(512, 512) as (process, addresses):
        assert limits_of(process.pid) == 512
        with idle_connections(addresses["http"]), idle_connections(addresses["grpc"]):
            for score in (0.5, 0.6):
                assert push(addresses["http"], "a", score)[0] == 200
            push_by_grpc(addresses["grpc"])
        process.terminate()
        said = process.communicate(timeout=PATIENCE_S)[1]
    assert "few_open_files" in said
    assert "limit=512" in said
