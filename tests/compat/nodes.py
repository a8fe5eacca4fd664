"""Simulated nodes of whichever version runs this file: `python nodes.py FLEET NODES RANKS`.

Each line on standard input is the number of a rank that becomes slow; the end of it stops them.
"""

import sys

from ingero.sim.cluster import DemoCluster


def main() -> None:
    """Start the nodes, obey, and stop them."""
    fleet, nodes, ranks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    cluster = DemoCluster([f"node-{number}" for number in range(nodes)], 1.0, ranks)
    cluster.addresses = {"http": fleet}
    try:
        cluster._start_nodes()
        for line in sys.stdin:
            cluster.slow_rank(int(line), 0.15)
    finally:
        cluster.stop()


if __name__ == "__main__":
    main()
