"""From running processes to a named rank, with real plugin rings, agents and Fleet.

Three synchronous jobs of eight processes run side by side, each a cluster of its own, so that one
warm-up serves all. Compute is simulated by calibrated absolute deadlines (see `live_job.py`);
barriers, rings, agents, wire and Fleet are real. A machine that does not wake the ranks up exactly
enough cannot tell 5 %: where a test fails there, it is skipped, with the wake-up error as reason.
"""

import contextlib
import json
import os
import platform
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, Any

import pytest
from tests.support.compiler import compile_c

from ingero.agent.nccl.build import FOLDER, LIBRARY

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(600),
]  # the story takes two minutes, and longer on a busy machine
BIN = Path(sys.executable).parent
HERE = Path(__file__).parent
WARM_UP_S = 240.0  # at most; it takes 65 s where nobody disturbs
NAMED_WITHIN_S = 20.0
EXACT_MS = 2.5  # wake-up error at which 5 % of 250 ms is still measurable
# 1 % of wake-ups may be further off; more, and ranks really do stall, which the engine waits out
NO_STALL_MS = 6.0
STALLS_WITHIN_S = 40.0  # six stalls, 3.8 s apart, and some patience
SKEW_NS = 5_000_000_000
OWN_MS = 250
PLUGIN = FOLDER / platform.machine() / LIBRARY


@dataclass
class Job:
    """One job and its agents; `seen` has every verdict, with seconds since the slowdown."""

    name: str
    ranks: subprocess.Popen[str]
    agents: list[subprocess.Popen[str]]
    logs: list[Path]
    slow: dict[str, Any]
    began_s: float = 0.0
    seen: list[tuple[float, dict[str, Any]]] = field(default_factory=list)
    measured: list[dict[str, Any]] = field(default_factory=list)
    said: str = ""

    def stragglers(self) -> list[tuple[float, dict[str, Any]]]:
        """Return the ranks that were named; engines of other tests on this machine have none."""
        named = [each for each in self.seen if each[1]["state"] == "straggler"]
        return [(at_s, verdict) for at_s, verdict in named if "rank" in verdict]

    def logged(self) -> str:
        return "".join(log.read_text() for log in self.logs)

    @contextlib.contextmanager
    def exact_wake_ups(self) -> Iterator[None]:
        """Skip what fails where this machine did not wake the ranks up exactly enough."""
        usual, worst = (
            max(each[key] for each in self.measured)
            for key in ("wake_up_error_ms", "wake_up_p99_ms")
        )
        measured = f"wake-up error {usual:.2f} ms, 1 % above {worst:.1f} ms"
        print(f"{self.name}: {measured}; verdicts {self.summary()}")
        try:
            yield
        except AssertionError as error:
            if usual <= EXACT_MS and worst <= NO_STALL_MS:
                raise
            pytest.skip(f"{self.name}: {measured}, too busy to tell 5 %: {error}"[:300])

    def summary(self) -> list[tuple[float, int, str, str, float]]:
        first: dict[str, tuple[float, int, str, str, float]] = {}
        for at_s, v in self.stragglers():
            first.setdefault(
                v["episode"], (round(at_s, 1), v["rank"], v["node"], v["class"], v["excess"])
            )
        return list(first.values())


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wall clock that can be wrong, for preloading."""
    target = tmp_path_factory.mktemp("clock") / "skewed_clock.so"
    options = ("-shared", "-fPIC", "-O1", "-fno-sanitize=undefined")
    return compile_c(HERE / "skewed_clock.c", target, *options)


@pytest.fixture(scope="module")
def jobs(clock: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Job]]:
    """Three jobs after their story: warm-up, slowdown, end."""
    with contextlib.ExitStack() as running:
        fleet = start_fleet(running, tmp_path_factory.mktemp("fleet"))
        begin = partial(start_job, running, fleet["http"], tmp_path_factory)
        found = {
            "plain": begin("plain", {"rank": 3, "share": 0.05}),
            "skewed": begin("skewed", {"rank": 6, "share": 0.05}, clock, [-SKEW_NS, SKEW_NS]),
            "stalls": begin("stalls", {"rank": 5, "every": 14, "late_ms": 290}),
        }
        tell_story(found, f"http://{fleet['threshold']}")
        yield found


def tell_story(jobs: dict[str, Job], api: str) -> None:
    wait_until(lambda: is_judged(api, jobs), WARM_UP_S)
    for job in jobs.values():
        job.began_s = time.monotonic()
        job.ranks.stdin.write(json.dumps(job.slow) + "\n")
        job.ranks.stdin.flush()
    watch_until(jobs, api, time.monotonic() + STALLS_WITHIN_S)
    named = [job for job in jobs.values() if job.stragglers()]
    # the next push brings it
    wait_until(lambda: all("state=straggler" in job.logged() for job in named))
    screen = subprocess.run(
        [str(BIN / "ingero"), "status", "--fleet", api], capture_output=True, text=True, check=False
    )
    print(screen.stdout)
    for job in jobs.values():
        job.said = screen.stdout
        job.measured = json.loads(job.ranks.communicate(timeout=120)[0])
        for agent in job.agents:
            agent.terminate()
            agent.wait(60)


def watch_until(jobs: dict[str, Job], api: str, deadline_s: float) -> None:
    """Until everybody slow is named, or the deadline."""
    while time.monotonic() < deadline_s and not all(job.stragglers() for job in jobs.values()):
        for cluster in status(api):
            job = jobs[cluster["cluster_id"]]
            job.seen += [
                (time.monotonic() - job.began_s, verdict) for verdict in cluster["verdicts"]
            ]
        time.sleep(0.5)


def is_judged(api: str, jobs: dict[str, Job]) -> bool:
    """Is what is normal known of every rank of every job?"""
    judged = {cluster["cluster_id"]: cluster["ranks"]["judged"] for cluster in status(api)}
    return all(judged.get(name) == 8 for name in jobs)


def status(api: str) -> list[dict[str, Any]]:
    with urllib.request.urlopen(f"{api}/api/v1/status", timeout=30) as response:
        clusters: list[dict[str, Any]] = json.load(response)["clusters"]
    return clusters


def wait_until(condition: Callable[[], bool], bound_s: float = 60.0) -> None:
    deadline_s = time.monotonic() + bound_s
    while not condition():
        assert time.monotonic() < deadline_s, "what was waited for never came"
        time.sleep(0.2)


def start_fleet(running: contextlib.ExitStack, folder: Path) -> dict[str, str]:
    ports = [
        f"--{name}=127.0.0.1:{free_port()}"
        for name in ("http", "agent", "admin", "health", "metrics", "prometheus")
    ]
    command = [
        str(BIN / "ingero-fleet"),
        *ports,
        "--grpc=off",
        "--json",
        "--record-inputs",
        str(folder / "inputs"),
    ]
    fleet = start(running, folder / "log", command)
    addresses: dict[str, str] = json.loads(fleet.stdout.readline())["addresses"]
    return addresses


def start_job(
    running: contextlib.ExitStack, endpoint: str, folders: pytest.TempPathFactory, name: str,
    slow: dict[str, Any],
    clock: Path | None = None, skews_ns: Sequence[int] = (0,),
) -> Job:  # fmt: skip
    """Eight ranks, evenly on as many simulated hosts as there are skews, with an agent on each."""
    shared_memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    rings = [
        running.enter_context(tempfile.TemporaryDirectory(dir=shared_memory)) for _ in skews_ns
    ]
    job = {"name": name, "folders": rings, "own_ms": OWN_MS, "plugin": str(PLUGIN)}
    if clock is not None:
        job |= {"skews_ns": skews_ns, "clock": str(clock)}
    preload = {} if clock is None else {"LD_PRELOAD": str(clock)}
    folder = folders.mktemp(name)
    ranks = start(
        running,
        folder / "ranks",
        [sys.executable, str(HERE.parent / "support" / "live_job.py"), json.dumps(job)],
        preload,
    )
    agents = []
    for host, (ring, skew_ns) in enumerate(zip(rings, skews_ns, strict=True)):
        command = [
            str(BIN / "ingero"), "fleet-push", "--fleet-endpoint", f"http://{endpoint}",
            "--fleet-insecure",
            "--fleet-cluster-id", name, "--fleet-node-id", f"{name}-host{host}",
            "--fleet-persist-path", "",
            "--signal-db-path", str(folder / "none.db"),
        ]  # fmt: skip
        environment = preload | {"SKEW_NS": str(skew_ns), "INGERO_NCCL_RING_DIR": ring}
        agents.append(start(running, folder / f"agent{host}", command, environment))
    return Job(name, ranks, agents, [folder / f"agent{host}" for host in range(len(rings))], slow)


def start(
    running: contextlib.ExitStack,
    log: Path,
    command: list[str],
    environment: dict[str, str] | None = None,
) -> subprocess.Popen[str]:
    stderr: IO[str] = running.enter_context(log.open("w"))
    process = subprocess.Popen(
        command, env=os.environ | (environment or {}), stdin=subprocess.PIPE,
        stdout=subprocess.PIPE, stderr=stderr,
        text=True, start_new_session=True,
    )  # fmt: skip

    def stop() -> None:
        with contextlib.suppress(ProcessLookupError):
            # with the ranks it forked, which hold its pipes open
            os.killpg(process.pid, signal.SIGKILL)
        if not process.stdout.closed:
            process.communicate()

    running.callback(stop)
    return process


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def check_named(job: Job, rank: int, node: str, within_s: float = NAMED_WITHIN_S) -> dict[str, Any]:
    """Exactly this rank, in time; returns the first verdict."""
    assert job.stragglers(), "nobody was named"
    at_s, verdict = job.stragglers()[0]
    assert {(v["rank"], v["node"]) for _, v in job.stragglers()} == {(rank, node)}
    assert 0 < at_s <= within_s
    return verdict


def test_five_percent_on_one_rank_is_named_within_twenty_seconds_and_no_other_rank(
    jobs: dict[str, Job],
) -> None:
    """F069, F108: every rank steps at the same rate, so throughput cannot tell; own time can."""
    job = jobs["plain"]
    rates = [each["steps_per_s"] for each in job.measured]
    assert max(rates) / min(rates) < 1.01  # what a score made of throughput would see
    with job.exact_wake_ups():
        verdict = check_named(job, 3, "plain-host0")
        assert verdict["class"] == "compute"
        assert 0.03 < verdict["excess"] < 0.08
        assert verdict["peers"] == 7


def test_clocks_ten_seconds_apart_change_nothing(jobs: dict[str, Job]) -> None:
    """F072: one host is five seconds behind and one five ahead, in records and in pushes."""
    job = jobs["skewed"]
    with job.exact_wake_ups():
        verdict = check_named(job, 6, "skewed-host1")
        assert verdict["class"] == "compute"
        assert 0.03 < verdict["excess"] < 0.08


def test_a_rank_that_is_290_ms_late_every_14_steps_is_named_with_lateness_and_period(
    jobs: dict[str, Job],
) -> None:
    """F070: the published case."""
    job = jobs["stalls"]
    with job.exact_wake_ups():
        check_named(job, 5, "stalls-host0", STALLS_WITHIN_S)
        _, verdict = job.stragglers()[-1]
        assert (verdict["class"], verdict["period"]) == ("stall", 14)
        assert verdict["excess"] * OWN_MS == pytest.approx(290, rel=0.1)


@pytest.mark.parametrize("name", ["plain", "skewed", "stalls"])
def test_agents_and_status_say_what_fleet_decided(jobs: dict[str, Job], name: str) -> None:
    """The verdict is in the reply to the same push: one entry in the log of that agent."""
    job = jobs[name]
    with job.exact_wake_ups():
        assert job.stragglers(), "nobody was named"
    _, verdict = job.stragglers()[0]
    assert [
        line
        for line in job.logged().splitlines()
        if " verdict " in line
        and "state=straggler" in line
        and f"rank={verdict['rank']}" in line
        and verdict["episode"] in line
    ]
    assert verdict["episode"] in job.said
    assert "    next: " in job.said
