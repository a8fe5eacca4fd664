"""A real Slurm cluster of three nodes on loopback: plugin in every task, gate, opt-in drain.

`make e2e-slurm` runs it; it needs root, slurmctld, slurmd and munged.
"""

import http.server
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.support.waiting import until

SLURM = Path(__file__).parents[2] / "deploy" / "slurm"
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(
        os.environ.get("INGERO_TEST_SLURM") != "1", reason="starts a cluster: `make e2e-slurm`"
    ),
]
CONF = """ClusterName=t
SlurmctldHost={host}(127.0.0.1)
AuthType=auth/munge
AuthInfo=socket={work}/munge.sock
SlurmUser=root
SlurmdUser=root
SlurmctldPort={ctld}
StateSaveLocation={work}/state
SlurmdSpoolDir={work}/spool/%n
SlurmctldPidFile={work}/ctld.pid
SlurmdPidFile={work}/d-%n.pid
SlurmctldLogFile={work}/ctld.log
SlurmdLogFile={work}/d-%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
ReturnToService=2
MpiDefault=none
TaskProlog={slurm}/task_prolog.sh
Prolog={work}/prolog.sh
PrologFlags=Alloc
{nodes}
PartitionName=p Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


class Cluster:
    """The daemons of a cluster, and commands that ask them."""

    def __init__(self, work: Path) -> None:
        self.work = work
        self.environment = os.environ | {
            "SLURM_CONF": str(work / "slurm.conf"),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin",
        }
        self._processes: list[subprocess.Popen[bytes]] = []

    def start(self) -> None:
        for folder in ("state", "spool"):
            (self.work / folder).mkdir()
        nodes = "\n".join(
            f"NodeName=gpu-{i} NodeHostname={socket.gethostname()} NodeAddr=127.0.0.1 "
            f"Port={free_port()} CPUs=1 RealMemory=100 State=UNKNOWN"
            for i in (1, 2, 3)
        )
        text = CONF.format(
            work=self.work, slurm=SLURM, ctld=free_port(), nodes=nodes, host=socket.gethostname()
        )
        (self.work / "slurm.conf").write_text(text)
        shutil.copy(SLURM / "prolog.sh", self.work / "prolog.sh")
        key = self.work / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        self._run(
            ["munged", "-F", "-f", f"--key-file={key}", f"--socket={self.work}/munge.sock"]
            + [f"--{name}-file={self.work}/munge.{name}" for name in ("pid", "log", "seed")]
        )
        until((self.work / "munge.sock").exists)
        self._run(["slurmctld", "-D", "-c"])
        for i in (1, 2, 3):
            self._run(["slurmd", "-D", "-N", f"gpu-{i}"])
        until(lambda: self.ask("sinfo", "-h", "-N", "-o", "%N %t").count("idle") == 3)

    def stop(self) -> None:
        for process in reversed(self._processes):
            process.terminate()
        for process in reversed(self._processes):
            process.wait(30)

    def ask(self, *command: str, check: bool = True) -> str:
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=120, check=False
        )
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def _run(self, command: list[str]) -> None:
        with (self.work / f"{command[0]}.out").open("ab") as out:
            process = subprocess.Popen(command, env=self.environment, stdout=out, stderr=out)
        self._processes.append(process)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    for program in ("slurmctld", "slurmd", "munged"):
        if shutil.which(program, path=f"{os.environ['PATH']}:/usr/sbin") is None:
            pytest.skip(f"{program} is not installed: `make peers-slurm`")
    work = tmp_path_factory.mktemp("slurm")
    made = Cluster(work)
    try:
        made.start()
        yield made
    finally:
        made.stop()


def test_every_task_has_the_plugin(cluster: Cluster) -> None:
    shown = cluster.ask("srun", "-N3", "sh", "-c", 'echo "$SLURMD_NODENAME $NCCL_PROFILER_PLUGIN"')
    lines = sorted(shown.splitlines())
    assert [line.split()[0] for line in lines] == ["gpu-1", "gpu-2", "gpu-3"]
    assert all(Path(line.split()[1]).name == "libnccl-profiler-ingero.so" for line in lines)


def test_a_plugin_of_the_job_is_kept(cluster: Cluster) -> None:
    shown = cluster.ask(
        "srun",
        "--export=ALL,NCCL_PROFILER_PLUGIN=/own.so",
        "sh",
        "-c",
        "echo $NCCL_PROFILER_PLUGIN",
    )
    assert shown.strip() == "/own.so"


class Fleet(http.server.BaseHTTPRequestHandler):
    """Answers as Fleet does while gpu-2 is slow."""

    def do_GET(self) -> None:
        verdict = {"episode": "e7", "state": "straggler", "node": "gpu-2", "class": "compute"}
        sure = {"since": time.time() - 600, "confidence": 0.98, "loss": 0.11}
        other = verdict | sure | {"node": "gpu-3", "confidence": 0.95, "episode": "e8"}
        clusters = [{"cluster_id": "t", "verdicts": [verdict | sure, other]}]
        body = json.dumps({"clusters": clusters}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        return


def test_the_named_node_is_drained_and_only_when_asked(cluster: Cluster) -> None:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Fleet) as fleet:
        threading.Thread(target=fleet.serve_forever, daemon=True).start()
        program = [sys.executable, str(SLURM / "drain_stragglers.py"), "--max-percent", "50"]
        program += ["--fleet", f"http://127.0.0.1:{fleet.server_port}"]
        assert "dry run, would drain gpu-2" in cluster.ask(*program)
        assert "drain" not in cluster.ask("sinfo", "-h", "-N", "-o", "%N %T")
        assert "drained gpu-2" in cluster.ask(*program, "--drain")
        assert "left alone: gpu-3" in cluster.ask(*program, "--drain")  # at most one
        fleet.shutdown()
    states = dict(
        line.split() for line in cluster.ask("sinfo", "-h", "-N", "-o", "%N %T").splitlines()
    )
    assert states == {"gpu-1": "idle", "gpu-2": "drained", "gpu-3": "idle"}
    assert "ingero: compute straggler" in cluster.ask("sinfo", "-R", "-h", "-o", "%E")
    cluster.ask("scontrol", "update", "nodename=gpu-2", "state=resume")
    until(lambda: cluster.ask("sinfo", "-h", "-N", "-o", "%N %t").count("idle") == 3)


def test_a_node_with_a_broken_agent_takes_no_job(cluster: Cluster) -> None:
    broken = cluster.work / "bin"
    broken.mkdir()
    (broken / "ingero").write_text("#!/bin/sh\necho '{\"healthy\": false}'\nexit 1\n")
    (broken / "ingero").chmod(0o755)
    gate = str(SLURM / "prolog.sh")
    path = f"{broken}:{os.environ['PATH']}"
    refused = subprocess.run([gate], env={"PATH": path}, capture_output=True, check=False)
    assert refused.returncode == 1
    passed = subprocess.run([gate], env={"PATH": os.environ["PATH"]}, check=False)
    assert passed.returncode == 0
