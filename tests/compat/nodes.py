"""Simulated nodes of whichever version runs this file: `python nodes.py FLEET NODES RANKS`.

Each line on standard input is the number of a rank that becomes slow; the end of it stops them.
"""

import sys
import time

from ingero.sim.cluster import DemoCluster


def main() -> None:
    """Start the nodes, obey, and stop them."""
    fleet, nodes, ranks = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    cluster = DemoCluster([f"node-{number}" for number in range(nodes)], 1.0, ranks)
    cluster.addresses = {"http": fleet}
    try:
        if hasattr(cluster, "_start_nodes"):
            cluster._start_nodes()
        else:  # how it was called before
            cluster._job_began_s = time.time()
            for number, name in enumerate(cluster.node_names):
                cluster._start_node(name, number)
        for line in sys.stdin:
            cluster.slow_rank(int(line), 0.15)
    finally:
        cluster.stop()


if __name__ == "__main__":
    main()
