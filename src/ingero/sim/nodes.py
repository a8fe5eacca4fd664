"""Runs several simulated nodes, each in a process of its own; the modules are loaded only once.

`python -m ingero.sim.nodes FILE`: the JSON file holds the arguments of `ingero.sim.node` per node.
"""

import os
import signal
import sys
from functools import partial
from pathlib import Path
from types import FrameType

import msgspec

from ingero.children.forked import start_fork
from ingero.sim.node import run_node


def main() -> None:
    """Start the nodes and wait; where one of them ends, the others end too."""
    specs = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=dict[str, list[str]])
    pids = {start_fork(partial(run_node, arguments)): name for name, arguments in specs.items()}

    is_stopping = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal is_stopping
        is_stopping = True
        for pid in pids:
            os.kill(pid, signal.SIGTERM)

    signal.signal(signal.SIGTERM, stop)
    while pids:
        pid, status = os.wait()
        name = pids.pop(pid)
        if not is_stopping:
            sys.stderr.write(f"simulated node {name} ended with status {status}\n")
            stop(signal.SIGTERM, None)


if __name__ == "__main__":
    main()
