"""A job that uses the plugin: the host program with its ring folder, driven step by step."""

import os
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from ingero.agent.nccl.reader import RingReader
from ingero.contract.nccl_ring import Records

HOST_SOURCE = Path(__file__).with_name("nccl_host.c")


class Job:
    """The host program in one scenario; `lines` is what it printed before it got ready."""

    def __init__(
        self,
        command: Sequence[str | Path],
        folder: Path,
        scenario: str,
        number: int = 100,
        version: int = 5,
        **environment: str,
    ) -> None:
        folder.mkdir(exist_ok=True)
        self.folder = folder
        self.lines: list[str] = []
        inherited = {
            name: value for name, value in os.environ.items() if name in ("PATH", "LD_LIBRARY_PATH")
        }
        self.process = subprocess.Popen(
            [*map(str, command), str(version), scenario, str(number)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=inherited | {"INGERO_NCCL_RING_DIR": str(folder)} | environment,
        )  # fmt: skip

    def __enter__(self) -> "Job":
        self.wait_ready()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self.process.kill()
        self.process.communicate()

    def wait_ready(self) -> None:
        assert self.process.stdout is not None
        self.lines = []
        for line in self.process.stdout:
            if line == "ready\n":
                return
            self.lines.append(line.strip())
        raise AssertionError(
            f"ended with {self.process.wait()}: "
            f"{self.process.stderr and self.process.stderr.read()}"
        )

    def proceed(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def finish(self) -> None:
        """Let it end; it must have found nothing wrong."""
        _, errors = self.process.communicate("\n\n\n\n", timeout=60)
        assert (self.process.returncode, errors) == (0, "")

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def ring(self) -> RingReader:
        (path,) = self.folder.glob(f"ingero-nccl-{self.process.pid}-*")
        return RingReader(path)

    def records(self) -> Records:
        reader = self.ring()
        records = reader.poll(0.0, is_final=True)
        assert reader.torn == reader.missed == 0
        reader.close()
        return records
