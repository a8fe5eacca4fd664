"""F060, F061: CPU time and memory of one Fleet process with a hundred agents.

`make bench-fleet` measures latencies: here they would depend on the load of the machine.
"""

import http.client
import time
from pathlib import Path

import pytest
from tests.support.cpu_time import cpu_s
from tests.support.pushes import protobuf
from tests.support.waiting import PATIENCE_S

from ingero.contract.names import PROTOBUF_TYPE
from ingero.sim.cluster import DemoCluster

pytestmark = pytest.mark.e2e
AGENTS = 100
ROUNDS = 8
BUDGET_BYTES = 150 << 20  # for ten thousand nodes; a hundred must fit all the more
PUSH_CPU_S = 0.005  # the bar for an answer is 20 ms


def test_a_hundred_agents_cost_little_time_and_little_memory() -> None:
    with DemoCluster([], push_interval_s=60, quorum=3) as fleet:
        assert fleet._fleet is not None
        pid = fleet._fleet.pid
        agents = [
            http.client.HTTPConnection(fleet.addresses["http"], timeout=PATIENCE_S)
            for _ in range(AGENTS)
        ]
        before_s = cpu_s(pid)
        for _ in range(ROUNDS):
            for number, agent in enumerate(agents):
                body = protobuf(f"n{number}", 0.95, cluster="demo", sent_ns=time.time_ns())
                agent.request(
                    "POST", "/v1/metrics?cluster_id=demo", body, {"Content-Type": PROTOBUF_TYPE}
                )
                reply = agent.getresponse()
                reply.read()
                assert reply.status == 200
        push_s = (cpu_s(pid) - before_s) / (AGENTS * ROUNDS)
        seen = fleet.wait_for(
            lambda status: status.quorum_met and len(status.nodes) == AGENTS, PATIENCE_S
        )
        status = Path(f"/proc/{pid}/status").read_text()
        for agent in agents:
            agent.close()
    resident_bytes = int(status.split("VmRSS:")[1].split()[0]) * 1024
    print(f"{push_s * 1e3:.2f} ms of a CPU per push, {resident_bytes >> 20} MiB")
    assert seen.stragglers == []
    assert push_s < PUSH_CPU_S
    assert resident_bytes < BUDGET_BYTES
