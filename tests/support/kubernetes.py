"""A real Kubernetes node for tests: started, asked with kubectl and Helm, and ended without trace.

`make peers-k8s` builds its programs.
"""

import contextlib
import hashlib
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.support import kubernetes_node
from tests.support.compiler import compile_c

PEERS = Path(os.environ.get("INGERO_PEERS") or Path.home() / ".cache/ingero/peers")
PROGRAMS = (
    "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "containerd",
    "containerd-shim-runc-v2", "ctr", "kwok", "helm", "kubectl",
)  # fmt: skip
# waits for ever, without a C library: containerd ends it with SIGKILL
PAUSE = """
void _start(void) {
  for (;;)
    __asm__ volatile("mov $34, %%eax; syscall" ::: "rax", "rcx", "r11"); /* pause, on x86-64 */
}
"""
PATIENCE_S = 300.0


@dataclass
class Cluster:
    """A running node. Commands run inside its namespaces."""

    pid: int
    work: Path

    def command(self, *words: str) -> list[str]:
        inside = ["nsenter", "-t", str(self.pid), "-m", "-n", "-p", f"--wd={Path.cwd()}"]
        path = f"PATH={PEERS / 'bin'}:{os.environ['PATH']}"
        config = f"KUBECONFIG={self.work / 'kubeconfig'}"
        home = f"HOME={self.work}"
        return [*inside, "env", path, config, home, *words]

    def run(self, *words: str, given: str | None = None, check: bool = True) -> str:
        """Run a command on the node; return its output."""
        done = subprocess.run(
            self.command(*words),
            input=given,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=False,
        )
        assert not check or done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def refused(self, *words: str, given: str) -> str:
        """Run a command that must fail; return what it says."""
        done = subprocess.run(
            self.command(*words), input=given, capture_output=True, text=True, check=False
        )
        assert done.returncode != 0, done.stdout
        return done.stderr

    def kubectl(self, *words: str, given: str | None = None, check: bool = True) -> str:
        return self.run("kubectl", *words, given=given, check=check)

    def objects(self, kind: str, *words: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = json.loads(self.kubectl("get", kind, "-o", "json", *words))[
            "items"
        ]
        return found

    def until(self, condition: Callable[[], object], what: str) -> float:
        """Wait; return how long it took. A failure tells what the pods say."""
        began_s = time.monotonic()
        while not condition():
            if time.monotonic() - began_s > PATIENCE_S:
                pytest.fail(f"{what}\n{self._state()}")
            time.sleep(0.5)
        return time.monotonic() - began_s

    def _state(self) -> str:
        """What the pods of all namespaces are, and what those say that are not ready."""
        said = self.kubectl("get", "pods", "-A", check=False)
        for pod in self.objects("pods", "-A"):
            if not all(each["ready"] for each in pod["status"].get("containerStatuses", [])):
                where = ("-n", pod["metadata"]["namespace"])
                name = pod["metadata"]["name"]
                said += self.kubectl("describe", "pod", name, *where, check=False)[-3000:]
                logs = ("logs", name, *where, "--all-containers", "--tail=30")
                said += self.kubectl(*logs, check=False)
        return said


def _layer(files: dict[str, bytes]) -> bytes:
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for path, data in files.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mode = len(data), 0o755
            tar.addfile(entry, io.BytesIO(data))
    return layer.getvalue()


def write_image(
    name: str, files: dict[str, bytes], entrypoint: list[str], target: Path, base: Path | None
) -> None:
    """Write an image with some programs more than `base` has, as an archive of Docker's format."""
    layer, config, layers = _layer(files), {"architecture": "amd64", "os": "linux"}, []
    with tarfile.open(target, "w") as archive:

        def add(path: str, data: bytes) -> None:
            entry = tarfile.TarInfo(path)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))

        if base is not None:
            with tarfile.open(base) as below:
                (manifest,) = json.load(below.extractfile("manifest.json"))  # type: ignore[arg-type] # it has one
                config = json.load(below.extractfile(manifest["Config"]))  # type: ignore[arg-type] # likewise
                layers = manifest["Layers"]
                for path in layers:
                    archive.addfile(below.getmember(path), below.extractfile(path))
        rootfs: Any = config.setdefault("rootfs", {"type": "layers", "diff_ids": []})  # type: ignore[arg-type] # JSON
        rootfs["diff_ids"].append(f"sha256:{hashlib.sha256(layer).hexdigest()}")
        settings: Any = config.setdefault("config", {})  # type: ignore[arg-type] # JSON
        settings.update(Entrypoint=entrypoint, User="")
        text = json.dumps({key: config[key] for key in config if key != "history"}).encode()
        add("config.json", text)
        added = f"{hashlib.sha256(layer).hexdigest()}.tar"
        add(added, layer)
        manifest = {
            "Config": "config.json",
            "RepoTags": [name],
            "Layers": [*layers, added],
        }
        add("manifest.json", json.dumps([manifest]).encode())


def pause_image(work: Path) -> None:
    """Write the image that holds the namespaces of a pod."""
    source, program = work / "pause.c", work / "pause"
    source.write_text(PAUSE)
    compile_c(source, program, "-O1", "-static", "-nostdlib")
    files = {"pause": program.read_bytes()}
    write_image("localhost/pause:1", files, ["/pause"], work / "images" / "pause.tar", None)


def require_kubernetes() -> None:
    """Skip where a node cannot run."""
    if os.geteuid() != 0:
        pytest.skip("needs root")
    missing = [name for name in PROGRAMS if not (PEERS / "bin" / name).exists()]
    missing += [name for name in ("etcd", "runc", "skopeo", "buildah") if not shutil.which(name)]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed: `make peers-k8s`")


@contextlib.contextmanager
def running_cluster(work: Path) -> Iterator[Cluster]:
    """Run a node with the images of `work/images` until the end of the block."""
    script = str(Path(kubernetes_node.__file__))
    apart = ["unshare", "-m", "-n", "-p", "-f", "--mount-proc", "--kill-child"]
    with (work / "node.log").open("w") as log:
        process = subprocess.Popen(
            [*apart, sys.executable, script, str(work), str(PEERS / "bin")],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        assert process.stdout is not None
        said = ""
        for said in process.stdout:
            if said.strip() == "ready":
                break
        assert said.strip() == "ready", (work / "node.log").read_text()[-3000:]
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        yield Cluster(int(children.read_text().split()[0]), work)
    finally:
        process.send_signal(signal.SIGKILL)  # the first process of the namespaces goes with it
        process.wait()
        assert process.stdout is not None
        process.stdout.close()
        remove_cgroups()


def remove_cgroups() -> None:
    """Remove the empty cgroups that the kubelet leaves."""
    end_s = time.monotonic() + 20
    while left := list(Path("/sys/fs/cgroup").glob("**/kubepods")):
        for root in left:
            for folder in sorted(root.glob("**/"), reverse=True):
                with contextlib.suppress(OSError):
                    folder.rmdir()
        if time.monotonic() > end_s:
            break
        time.sleep(0.1)
