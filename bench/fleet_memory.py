"""`make bench-fleet-memory`: how much memory Fleet needs for a hundred nodes that push health.

Measured once with gRPC off and once with the printed configuration. What `--record-inputs` keeps
and what own times of ranks add is not counted. The least of three rounds counts: the kernel and
the allocator can only add pages to what Fleet needs.
"""

import os
import tempfile
from pathlib import Path

from bench.fleet_push import TARGET, fleet_command
from bench.measure import free_port, load, rss_mb, server, write_requests
from bench.push_bodies import bodies
from bench.table import finish, judge, print_table
from ingero.contract.names import PROTOBUF_TYPE

NODES = 100
ROUNDS = int(os.environ.get("ROUNDS", "3"))
PUSHES_EACH = 10
PRINTED = Path(__file__).parents[1] / "configs" / "fleet-config-plain.yaml"
LIMITS_MB = {"gRPC off": 60.0, "printed configuration": 70.0}


def measure(name: str, requests: Path) -> tuple[float, float]:
    """Return the memory of Fleet in MB (2**20 bytes) at its start, and with a hundred nodes."""
    port = free_port()
    if name == "gRPC off":
        command = fleet_command(port)
    else:
        command = [*fleet_command(port, free_port()), "--config", str(PRINTED)]
    with server(command, port) as pid:
        before_mb = rss_mb(pid)
        load(port, pid, requests, NODES * PUSHES_EACH / 3, 3, NODES)
        return before_mb, rss_mb(pid)


def least(name: str, requests: Path) -> tuple[float, float]:
    """Return the round with the least memory for a hundred nodes."""
    return min((measure(name, requests) for _ in range(ROUNDS)), key=lambda found: found[1])


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        encoded, _ = bodies(NODES, clusters=1)
        requests = write_requests(Path(folder) / "pushes", encoded, PROTOBUF_TYPE, TARGET)
        found = {name: least(name, requests) for name in LIMITS_MB}
    print_table(
        f"memory of Fleet in MB, {NODES} nodes with a connection each",
        ("configuration", "at start", f"{NODES} nodes"),
        [(name, *figures) for name, figures in found.items()],
    )
    finish(
        judge(
            [
                (
                    f"{name}: at most {limit:g} MB",
                    found[name][1] <= limit,
                    f"{found[name][1]:.1f} MB",
                )
                for name, limit in LIMITS_MB.items()
            ]
        )
    )


if __name__ == "__main__":
    main()
