#!/opt/ingero/bin/python3
"""In the place of `torchrun` in an image: the first pod runs eight ranks, the others wait.

Rank 3 is slowed once /dev/shm/slow exists.
"""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

SLOW = {"rank": 3, "share": 0.4}


def main() -> None:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    if os.environ.get("JOB_COMPLETION_INDEX", "0") != "0":
        time.sleep(3600)
    job = {
        "name": "train",
        "folders": ["/dev/shm"],
        "plugin": os.environ["NCCL_PROFILER_PLUGIN"],
    }
    command = [sys.executable, "/opt/train/live_job.py", json.dumps(job)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, text=True) as ranks:
        assert ranks.stdin is not None
        while not Path("/dev/shm/slow").exists():
            time.sleep(0.2)
        ranks.stdin.write(f"{json.dumps(SLOW)}\n")
        ranks.stdin.flush()
        ranks.wait()


if __name__ == "__main__":
    main()
