"""Eight real NCCL ranks on one GPU with agent and Fleet.

One rank is slowed on the GPU, another on the host, then none.

    make wheelhouse                       # once, where pip works; carry wheelhouse/ with the tree
    bash tests/hardware/live_verdict.sh   # on the GPU machine
    bash tests/hardware/live_verdict.sh --dry    # anywhere, with simulated ranks

Each slow rank must be named within 20 s with class and excess, nobody else may be blamed, and the
episode must be resolved afterwards. Prints what `ingero status` shows and the verdicts as JSON, and
leaves both with the logs in --out. Exits with status 1 when a check fails.
"""

import argparse
import json
import os
import platform
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import IO, Any

sys.path.insert(0, str(Path(__file__).parent))

from nccl_ranks import PLUGIN, ROOT, WORLD, Machine, start_ranks

CLUSTER = "hardware"
WARM_UP_S = 70.0
NAMED_WITHIN_S = 20.0
RESOLVED_WITHIN_S = 90.0
PATIENCE_S = 15.0  # beyond the bound, to print a late answer rather than none
START_S = 120.0
PHASES = (  # what is slow, who, which class is right
    ("rank 3: 5 % more work on the GPU", {"rank": 3, "gpu": 0.05}, 3, "compute"),
    ("rank 5: 2 ms a step on the host", {"rank": 5, "host_s": 0.002}, 5, "host"),
)
# per GPU hour
RATES = (
    "currency_name: USD\ncurrency_symbol: $\nfallback_rate: 3.5\nproviders: {onprem: {none: 1}}\n"
)
DRY_SLOW = {3: {"rank": 3, "share": 0.05}, 5: {"rank": 5, "share": 0.10, "class": "host"}}


class RealJob:
    """The ranks of `nccl_job.py`; a file tells them what is slow."""

    def __init__(self, folder: Path, wheelhouse: Path) -> None:
        self.machine = Machine(folder, wheelhouse)
        self.rings = self.machine.rings
        self.control = folder / "control.json"
        self.slow({})
        plain = {
            name: value for name, value in self.machine.environment.items() if name != "PYTHONPATH"
        }
        self.machine.environment = plain
        scenario = {"steps": 10**9, "control": str(self.control)}
        self.ranks = start_ranks(self.machine, scenario, folder, with_plugin=True)

    def slow(self, fault: dict[str, Any]) -> None:
        fresh = self.control.with_suffix(".new")
        fresh.write_text(json.dumps(fault))
        fresh.rename(self.control)

    def is_running(self) -> bool:
        return all(rank.poll() is None for rank in self.ranks)

    def close(self) -> None:
        self.slow({"stop": True})
        deadline = time.monotonic() + 30
        while any(rank.poll() is None for rank in self.ranks) and time.monotonic() < deadline:
            time.sleep(0.2)
        for rank in self.ranks:
            rank.kill()
            rank.wait()
        self.machine.close()


class DryJob:
    """Simulated ranks on the real plugin, to try this script without a GPU."""

    def __init__(self, folder: Path) -> None:
        self.rings = Path(tempfile.mkdtemp(prefix="ingero-dry-", dir="/dev/shm"))
        job = {"name": "dry", "folders": [str(self.rings)], "plugin": str(PLUGIN), "own_ms": 100}
        command = [sys.executable, str(ROOT / "tests" / "support" / "live_job.py"), json.dumps(job)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)

    def slow(self, fault: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(DRY_SLOW.get(fault.get("rank", -1), {})) + "\n")
        self.process.stdin.flush()

    def is_running(self) -> bool:
        return self.process.poll() is None

    def close(self) -> None:
        self.process.communicate(timeout=30)
        shutil.rmtree(self.rings, ignore_errors=True)


class Services:
    """A Fleet and the agent of this node, as processes."""

    def __init__(self, rings: Path, out: Path) -> None:
        self.out = out
        self.logs: list[IO[bytes]] = []
        names = ("http", "agent", "admin", "health", "metrics", "prometheus")
        ports = {name: free_port() for name in names}
        self.api = f"http://127.0.0.1:{ports['agent']}"
        self.metrics = f"http://127.0.0.1:{ports['metrics']}/metrics"
        listeners = [f"--{name}=127.0.0.1:{port}" for name, port in ports.items()]
        (out / "rates.yaml").write_text(RATES)
        (out / "fleet.yaml").write_text(
            f"processors: {{ingero: {{verdict: {{rates_file: {out / 'rates.yaml'}}}}}}}\n"
        )
        configured = [f"--config={out / 'fleet.yaml'}", "--grpc=off", *listeners]
        self.fleet = self._start("fleet", ["-m", "ingero.cli.commands.services.fleet", *configured])
        self.agent = self._start(
            "agent",
            [
                "-m",
                "ingero",
                "fleet-push",
                "--fleet-endpoint",
                f"http://127.0.0.1:{ports['http']}",
                "--fleet-insecure",
                "--fleet-cluster-id",
                CLUSTER,
                "--fleet-node-id",
                platform.node(),
                "--fleet-persist-path",
                "",
                "--signal-db-path",
                str(out / "none.db"),
            ],
            {"INGERO_NCCL_RING_DIR": str(rings)},
        )

    def _start(
        self, name: str, command: list[str], more: dict[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        log = (self.out / f"{name}.log").open("wb")
        self.logs.append(log)
        return subprocess.Popen(
            [sys.executable, *command], env=os.environ | (more or {}), stdout=log, stderr=log
        )

    def verdicts(self) -> list[dict[str, Any]]:
        with urllib.request.urlopen(f"{self.api}/api/v1/status", timeout=10) as response:
            return [
                verdict for each in json.load(response)["clusters"] for verdict in each["verdicts"]
            ]

    def own_times(self) -> float:
        try:
            with urllib.request.urlopen(self.metrics, timeout=10) as response:
                lines = response.read().decode().splitlines()
        except OSError:
            return 0.0
        return sum(
            float(line.split()[-1]) for line in lines if 'inputs_total{kind="own_time"}' in line
        )

    def screen(self) -> str:
        command = [sys.executable, "-m", "ingero", "status", "--fleet", self.api]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout

    def close(self) -> None:
        for process in (self.agent, self.fleet):
            process.terminate()
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
        for log in self.logs:
            log.close()


class Story:
    """What happens, and what was wrong with it."""

    def __init__(self, job: RealJob | DryJob, services: Services, out: Path) -> None:
        self.job, self.services, self.out = job, services, out
        self.problems: list[str] = []
        self.blamed: dict[int | None, dict[str, Any]] = {}
        self.reported: dict[str, dict[str, Any]] = {}
        self.history = (out / "verdicts.jsonl").open("w")

    def tell(self) -> None:
        self._wait_for_data()
        print(f"own times arrive; {WARM_UP_S:.0f} s to learn what is normal")
        self._watch(WARM_UP_S, lambda: False)
        self._blame_nobody_but(None, "while nothing was slow")
        for title, fault, rank, cause in PHASES:
            self._phase(title, fault, rank, cause)
        self._watch(5, lambda: False)
        self._blame_nobody_but(None, "after everything")
        self.history.close()

    def _phase(self, title: str, fault: dict[str, Any], rank: int, cause: str) -> None:
        self.blamed.clear()
        self.job.slow(fault)
        took = self._watch(NAMED_WITHIN_S + PATIENCE_S, lambda: rank in self.blamed)
        self._watch(12, lambda: False)  # excess and class follow every 10 s
        print(f"\n== {title}")
        if took is None:
            self.problems.append(f"{title}: not named in {NAMED_WITHIN_S + PATIENCE_S:.0f} s")
        else:
            verdict = self.blamed[rank]
            print(
                f"named after {took:.1f} s: {verdict['class']}, {verdict['excess']:+.1%} "
                f"±{verdict['error']:.1%}"
            )
            print(json.dumps(verdict, indent=1))
            if took > NAMED_WITHIN_S:
                self.problems.append(f"{title}: named after {took:.1f} s")
            if verdict["class"] != cause:
                self.problems.append(f"{title}: class {verdict['class']}, not {cause}")
        print(self.services.screen())
        self._blame_nobody_but(rank, title)
        self.job.slow({})
        done = self._watch(RESOLVED_WITHIN_S, lambda: not self._open())
        print("not resolved" if done is None else f"resolved after {done:.1f} s")
        if done is None:
            self.problems.append(f"{title}: still open {RESOLVED_WITHIN_S:.0f} s after its end")
        self._blame_nobody_but(rank, f"{title}, afterwards")
        self.blamed.clear()

    def _watch(self, seconds: float, is_enough: Any) -> float | None:
        """How long it took, or None when time ran out."""
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            if not self.job.is_running():
                raise SystemExit(f"the job ended too soon; see {self.out}")
            for verdict in self.services.verdicts():
                if self.reported.get(verdict["episode"]) != verdict:
                    self.reported[verdict["episode"]] = verdict
                    self.history.write(json.dumps({"at": time.time()} | verdict) + "\n")
                if verdict["state"] == "straggler":
                    self.blamed[verdict.get("rank")] = verdict
            if is_enough():
                return time.monotonic() - began
            time.sleep(0.5)
        return None

    def _open(self) -> list[dict[str, Any]]:
        return [
            each
            for each in self.services.verdicts()
            if each["state"] not in ("resolved", "fleet_event")
        ]

    def _blame_nobody_but(self, rank: int | None, when: str) -> None:
        others = {who: verdict["excess"] for who, verdict in self.blamed.items() if who != rank}
        if others:
            self.problems.append(f"{when}: also blamed {others}")

    def _wait_for_data(self) -> None:
        deadline = time.monotonic() + START_S
        while self.services.own_times() < 10 * WORLD:
            if time.monotonic() > deadline or not self.job.is_running():
                raise SystemExit(f"no own times arrive; see the logs in {self.out}")
            time.sleep(0.5)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dry", action="store_true", help="simulated ranks instead of NCCL")
    parser.add_argument("--wheelhouse", type=Path, default=ROOT / "wheelhouse")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", "live-verdict-out")))
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        job = DryJob(Path(folder)) if args.dry else RealJob(Path(folder), args.wheelhouse)
        services = Services(job.rings, args.out)
        story = Story(job, services, args.out)
        try:
            story.tell()
        finally:
            services.close()
            job.close()
            for log in Path(folder).glob("rank_*.log"):
                shutil.copy(log, args.out)
    print(f"\n{time.monotonic() - began:.0f} s in all")
    print("\n".join(story.problems) or "all checks passed")
    sys.exit(1 if story.problems else 0)


if __name__ == "__main__":
    main()
