"""`make bench-plugin`: host time the NCCL plugin adds to a collective, against an empty plugin."""

import os
import platform
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from ingero.agent.nccl.build import FOLDER, LIBRARY

HOST_SOURCE = Path(__file__).parents[1] / "tests" / "support" / "nccl_host.c"
OPERATIONS = 50_000


def main() -> None:
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        host = Path(folder) / "host"
        compiler = [
            sys.executable,
            "-m",
            "ziglang",
            "cc",
            "-std=c11",
            "-O2",
            "-fno-sanitize=undefined",
        ]
        subprocess.run([*compiler, "-o", host, HOST_SOURCE, "-ldl", "-lpthread"], check=True)
        plugin = FOLDER / platform.machine() / LIBRARY
        done = subprocess.run(
            [host, plugin, "6", "bench", str(OPERATIONS)],
            env=os.environ | {"INGERO_NCCL_RING_DIR": folder},
            check=True,
            capture_output=True,
            text=True,
        )
    pairs = [tuple(map(float, line.split())) for line in done.stdout.splitlines()]
    added = [real - empty for real, empty in pairs]
    print(f"{len(pairs)} alternated pairs of {OPERATIONS:,} collectives with two channels each")
    print(
        f"with the plugin   median {statistics.median(real for real, _ in pairs):6.0f} ns "
        "per collective"
    )
    print(
        f"empty plugin      median {statistics.median(empty for _, empty in pairs):6.0f} ns "
        "per collective"
    )
    print(
        f"added             median {statistics.median(added):6.0f} ns   "
        f"worst pair {max(added):.0f} ns"
    )


if __name__ == "__main__":
    main()
