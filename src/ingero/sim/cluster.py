"""A small cluster on this machine: Fleet and simulated nodes, each in its own process."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import tempfile
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import msgspec

from ingero.children.process import (
    following_command,
    last_line,
    start_child,
    stop_children,
    wait_for_line,
)
from ingero.contract import fleet_api
from ingero.contract.api_paths import (
    FLEET_DEBUG_SCORES,
    FLEET_EPISODE,
    FLEET_EPISODES,
    FLEET_STATUS,
)
from ingero.contract.episodes.episode import Episode, EpisodeList
from ingero.contract.verdict import Verdict, VerdictState
from ingero.errors import Unavailable
from ingero.sim.hurry import HurriedClock
from ingero.sim.job import SlowSpell, write_job_control
from ingero.sim.node import write_control

T = TypeVar("T")
CLUSTER: Final = "demo"
WARMUP_SAMPLES: Final = 5
POLL_S: Final = 0.1
STOP_S: Final = 10.0
SLOW_AHEAD_S: Final = 1.5  # all nodes have read the control file by then
HURRY: Final = 4.0  # times as fast as the real clock
LEARNING_SAMPLES: Final = 20  # of a rank; 30 in production
_STATUS = fleet_api.Status[fleet_api.NodeStatus]
# flag of ingero-fleet -> name under which it reports the address
_LISTENERS: Final = {
    name: name for name in ("grpc", "http", "admin", "health", "metrics", "prometheus")
} | {"agent": "threshold"}


@dataclass(frozen=True, slots=True)
class NodeStatus:
    """A node as Fleet reports it."""

    name: str
    state: str
    score: float | None
    is_straggler: bool
    mode: str | None


@dataclass(frozen=True, slots=True)
class ClusterStatus:
    """The cluster as Fleet reports it."""

    threshold: float | None
    quorum_met: bool
    nodes: dict[str, NodeStatus]

    @property
    def stragglers(self) -> list[str]:
        return sorted(name for name, node in self.nodes.items() if node.is_straggler)


@dataclass
class DemoCluster:
    """Starts Fleet and the nodes, and stops them at the end of the `with` block."""

    node_names: Sequence[str]
    push_interval_s: float = 1.0
    ranks_per_node: int = 0  # of one simulated job over all nodes
    quorum: int | None = None  # nodes needed for a threshold; None means all, at most three
    exporters: str = ""  # extra lines under `exporters:` of Fleet's file
    pipeline: str = "prometheus"
    folder: Path = field(default_factory=lambda: Path(tempfile.mkdtemp(prefix="ingero-demo-")))
    addresses: dict[str, str] = field(default_factory=dict)
    _fleet: subprocess.Popen[str] | None = None
    _reserved_ports: list[socket.socket] = field(default_factory=list)
    behind_s: float = 0.0  # how late the clock of all processes is, until `hurry`
    _nodes: subprocess.Popen[str] | None = None
    _clock: HurriedClock | None = None
    _spells: list[SlowSpell] = field(default_factory=list)

    def __enter__(self) -> Self:
        try:
            if self.behind_s:
                self._clock = HurriedClock(self.folder / "clock", self.behind_s, HURRY)
            self.start_fleet()
            if self.node_names:
                self._start_nodes()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start_fleet(self) -> None:
        """Start Fleet; after the first time, on the same addresses."""
        config = self.folder / "fleet-config.yaml"
        config.write_text(self._fleet_config())
        ports = [
            word for flag, name in _LISTENERS.items() for word in (f"--{flag}", self._port(name))
        ]
        fleet = "ingero.cli.commands.services.fleet"
        command = self._command(fleet, "--config", str(config), "--json", *ports)
        log_file = self.folder / "fleet.log"
        self._fleet = start_child(command, errors=log_file)
        line = wait_for_line(self._fleet)
        if not line:
            raise Unavailable(f"Fleet did not start: {last_line(log_file, 'its log is empty')}")
        self.addresses = json.loads(line)["addresses"]
        self._release_ports()

    def kill_fleet(self) -> None:
        """Kill Fleet at once, as an outage does, and keep its ports reserved."""
        assert self._fleet is not None
        self._fleet.kill()
        self._fleet.communicate()
        self._reserved_ports = [_reserve_port(address) for address in self.addresses.values()]

    def now_s(self) -> float:
        """Return the Unix time by the clock of the cluster."""
        return time.time() if self._clock is None else self._clock.now_s()

    def hurry(self) -> None:
        """Let the cluster's clock run faster until it has caught up."""
        if self._clock is not None:
            self._clock.go()

    @property
    def is_late(self) -> bool:
        """Whether the cluster's clock is still behind."""
        return self._clock is not None and self._clock.ahead_s(time.time()) < 0

    def slow(self, node: str, level: float, over_s: float = 0.0) -> None:
        """Bring one node to a share of its normal throughput."""
        write_control(self.folder / f"{node}.control", level, over_s)

    def slow_rank(self, rank: int, excess: float) -> float:
        """Let the GPU of a rank need `excess` more time; return when that begins, as Unix time."""
        at_s = self.now_s() + SLOW_AHEAD_S
        self._spells.append(SlowSpell(rank, excess, at_s))
        write_job_control(self.folder / "job.control", self._spells)
        return at_s

    def heal_rank(self, rank: int) -> None:
        """Let a rank be as fast as the others again."""
        at_s = self.now_s() + SLOW_AHEAD_S
        self._spells = [
            msgspec.structs.replace(each, until_s=min(each.until_s, at_s))
            if each.rank == rank
            else each
            for each in self._spells
        ]
        write_job_control(self.folder / "job.control", self._spells)

    def named(self) -> list[Verdict]:
        """Return everybody whom Fleet has called slow since it started, once each."""
        try:
            listed = self._get(FLEET_EPISODES, EpisodeList).episodes
            episodes = [found for each in listed if (found := self._episode(each.episode))]
        except (OSError, msgspec.DecodeError) as error:
            raise Unavailable(f"Fleet cannot say whom it has named: {error}") from None
        return [
            each.latest
            for each in episodes
            if any(moment.verdict.state is VerdictState.STRAGGLER for moment in each.verdicts)
        ]

    def _episode(self, name: str) -> Episode | None:
        """Return an episode; None for a suspicion that was dropped after it was listed."""
        try:
            return self._get(FLEET_EPISODE.format(episode=name), Episode)
        except urllib.error.HTTPError as error:
            if error.code == HTTPStatus.NOT_FOUND:
                return None
            raise

    def _get(self, path: str, kind: type[T]) -> T:
        url = f"http://{self.addresses['threshold']}{path}"
        with urllib.request.urlopen(url, timeout=5) as reply:
            return msgspec.json.decode(reply.read(), type=kind)

    def judged(self) -> fleet_api.ClusterStatus[fleet_api.NodeStatus] | None:
        """Return what `ingero status` shows; None while Fleet does not answer."""
        try:
            found = self._get(FLEET_STATUS, _STATUS).clusters
        except (OSError, msgspec.DecodeError):
            return None
        return next((each for each in found if each.cluster_id == CLUSTER), None)

    def status(self, cluster: str = CLUSTER) -> ClusterStatus | None:
        """Return what Fleet reports; None while it does not answer."""
        query = urllib.parse.urlencode({"cluster_id": cluster})
        url = f"http://{self.addresses['admin']}{FLEET_DEBUG_SCORES}?{query}"
        try:
            with urllib.request.urlopen(url, timeout=2) as reply:
                return _status(json.load(reply))
        except (OSError, ValueError):
            return None

    def wait_for(
        self, condition: Callable[[ClusterStatus], bool], seconds: float, cluster: str = CLUSTER
    ) -> ClusterStatus:
        """Return the first status that meets a condition; Unavailable carries the last one seen."""
        deadline = time.monotonic() + seconds
        seen = self.status(cluster)
        while seen is None or not condition(seen):
            self.check_alive()
            if time.monotonic() > deadline:
                raise Unavailable(
                    f"the expected state was not reached within {seconds:g} s; last seen: {seen}"
                )
            time.sleep(POLL_S)
            seen = self.status(cluster)
        return seen

    def stop(self) -> None:
        """Stop every process and remove the folder."""
        children = [child for child in (self._nodes, self._fleet) if child is not None]
        stop_children(*children, timeout_s=STOP_S)
        self._release_ports()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _release_ports(self) -> None:
        while self._reserved_ports:
            self._reserved_ports.pop().close()

    def _command(self, module: str, *arguments: str) -> list[str]:
        """Return the command of a child that lives by the clock of the cluster."""
        if self._clock is None:
            return following_command(module, *arguments)
        clock = (str(self._clock.path), str(self._clock.behind_s), str(self._clock.speed))
        return following_command("ingero.sim.hurry", *clock, module, *arguments)

    def _start_nodes(self) -> None:
        began_s = self.now_s()
        arguments = {
            name: self._node_arguments(name, number, began_s)
            for number, name in enumerate(self.node_names)
        }
        specs = self.folder / "nodes.json"
        specs.write_bytes(msgspec.json.encode(arguments))
        log_file = self.folder / "nodes.log"
        self._nodes = start_child(
            self._command("ingero.sim.nodes", str(specs)),
            output=log_file,
            errors=log_file,
            environment={**os.environ, "PYTHONUNBUFFERED": "1"},
        )

    def _node_arguments(self, name: str, number: int, began_s: float) -> list[str]:
        return [
            "--fleet", self.addresses["http"], "--cluster", CLUSTER,
            "--node", name, "--control", str(self.folder / f"{name}.control"),
            "--seed", str(number + 1),
            "--push-interval", str(self.push_interval_s), "--warmup", str(WARMUP_SAMPLES),
            "--ranks", str(self.ranks_per_node), "--first-rank", str(number * self.ranks_per_node),
            "--world", str(len(self.node_names) * self.ranks_per_node),
            "--job-control", str(self.folder / "job.control"), "--job-began", str(began_s),
        ]  # fmt: skip

    def check_alive(self) -> None:
        """Raise Unavailable if a simulated node has ended."""
        if self._nodes is not None and self._nodes.poll() is not None:
            raise Unavailable(last_line(self.folder / "nodes.log", "the simulated nodes ended"))

    def _port(self, name: str) -> str:
        return self.addresses[name].rsplit(":", 1)[1] if name in self.addresses else "0"

    def _fleet_config(self) -> str:
        quorum = self.quorum or min(3, len(self.node_names))
        return f"""
receivers:
  otlp: {{protocols: {{grpc: {{endpoint: '127.0.0.1:0'}}, http: {{endpoint: '127.0.0.1:0'}}}}}}
processors:
  ingero:
    push_interval: {self.push_interval_s:g}s
    quorum: {{statistical_min: {quorum}}}
    verdict: {{warmup_samples: {LEARNING_SAMPLES}}}
extensions:
  ingero_threshold: {{agent_endpoint: '127.0.0.1:0', admin_endpoint: '127.0.0.1:0'}}
exporters:
  prometheus: {{endpoint: '127.0.0.1:0'}}
{self.exporters}
service:
  extensions: [ingero_threshold]
  pipelines:
    metrics: {{receivers: [otlp], processors: [ingero], exporters: [{self.pipeline}]}}
"""


def _reserve_port(address: str) -> socket.socket:
    """Bind a port without listening: no other process is given it, and Fleet can still bind it."""
    host, port = address.rsplit(":", 1)
    reserved = socket.socket()
    reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    with contextlib.suppress(OSError):  # it is already taken, which Fleet reports when it starts
        reserved.bind((host, int(port)))
    return reserved


def _status(scores: dict[str, Any]) -> ClusterStatus:
    nodes = {
        row["node_id"]: NodeStatus(
            row["node_id"], row["state"], row["score"], bool(row["straggler"]), row["mode"]
        )
        for row in scores["nodes"]
    }
    return ClusterStatus(scores["threshold"], scores["quorum_met"], nodes)
