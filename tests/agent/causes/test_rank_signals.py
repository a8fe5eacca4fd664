"""Signals from counters: cgroups of both versions, network, threads; what is missing is absent."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from tests.support import lossy_link

from ingero.agent.causes import cgroups, network
from ingero.agent.causes.cgroups import CgroupCounts, count_cgroups
from ingero.agent.causes.network import NetworkCounts, count_network
from ingero.agent.causes.rank_signals import Reading, signals_between, take_reading
from ingero.agent.causes.threads import (
    ThreadCounts,
    children_of,
    comm_of,
    count_threads,
    driving_threads,
)
from ingero.contract.causes import Signal

BEFORE = Reading(10.0, ThreadCounts(), CgroupCounts(), NetworkCounts())
SNMP = b"Tcp: RtoAlgorithm OutSegs RetransSegs\nTcp: 1 5000 12\nUdp: X\nUdp: 1\n"
DEV = b"""Inter-|   Receive  |  Transmit
 face |bytes packets errs drop fifo frame compressed multicast|bytes packets errs drop fifo
    lo: 1 1 9 9 0 0 0 0 1 1 9 9 0 0 0 0
  eth0: 1 1 2 3 0 0 0 0 1 1 4 5 0 0 0 0
"""


def test_time_becomes_shares_and_events_become_rates() -> None:
    threads = ThreadCounts(2_000_000_000, 1_000_000_000, 40, 10, 100)
    stalls = CgroupCounts(0, 0, 0, 500_000, None)
    after = Reading(14.0, threads, stalls, NetworkCounts(sent=1000, retransmitted=21, errors=8))
    before = replace(BEFORE, cgroup=CgroupCounts(memory_stall_us=0))
    found = signals_between(before, after)
    assert found == {
        Signal.CPU_SHARE: 0.5,
        Signal.RUNQUEUE_SHARE: 0.25,
        Signal.PREEMPTIONS: 10.0,
        Signal.MAJOR_FAULTS: 2.5,
        Signal.QUOTA_SHARE: 0.0,
        Signal.NIC_ERRORS: 2.0,
        Signal.DISK_SHARE: pytest.approx(100 / os.sysconf("SC_CLK_TCK") / 4.0),
        Signal.RETRANSMIT_SHARE: 0.021,
        Signal.MEMORY_PRESSURE: 0.125,
    }


def test_time_that_a_quota_takes_is_not_also_a_wait_for_a_cpu() -> None:
    threads = ThreadCounts(1_000_000_000, 2_400_000_000)
    after = Reading(14.0, threads, CgroupCounts(2_000_000_000, 20, 40), NetworkCounts())
    found = signals_between(BEFORE, after)
    assert found[Signal.QUOTA_SHARE] == 0.5
    assert found[Signal.RUNQUEUE_SHARE] == pytest.approx(0.1)


def test_a_quota_on_many_cpus_is_bounded_by_the_periods_that_were_cut() -> None:
    after = Reading(14.0, ThreadCounts(), CgroupCounts(16_000_000_000, 10, 40), NetworkCounts())
    assert signals_between(BEFORE, after)[Signal.QUOTA_SHARE] == 0.25


def test_few_segments_and_equal_times_say_nothing() -> None:
    after = Reading(14.0, ThreadCounts(), CgroupCounts(), NetworkCounts(50, 50))
    assert Signal.RETRANSMIT_SHARE not in signals_between(BEFORE, after)
    assert signals_between(BEFORE, BEFORE) == {}


@pytest.mark.parametrize("version", [1, 2])
def test_the_strictest_cgroup_above_a_process_gives_the_quota(
    version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = {"": "/pod/box"} if version == 2 else {"cpu": "/pod/box", "": "/"}
    monkeypatch.setattr(cgroups, "cgroup_paths", lambda _: names)
    (tmp_path / "pod" / "box").mkdir(parents=True)
    text = (
        "usage_usec 5\nnr_periods 40\nnr_throttled 9\nthrottled_usec 3000\n"
        if version == 2
        else "nr_periods 40\nnr_throttled 9\nthrottled_time 3000000\n"
    )
    (tmp_path / "pod" / "cpu.stat").write_text(text)
    (tmp_path / "pod" / "box" / "cpu.stat").write_text("nr_periods 0\nnr_throttled 0\n")
    (tmp_path / "pod" / "box" / "memory.pressure").write_text(
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=77\nfull avg10=0.00 total=5\n"
    )
    nowhere = tmp_path / "nowhere"
    found = count_cgroups(
        1, tmp_path if version == 2 else nowhere, tmp_path if version == 1 else nowhere
    )
    stall = 77 if version == 2 else None
    assert found == CgroupCounts(3_000_000, 9, 40, stall, None)


def test_network_counts_leave_out_the_loopback_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files = {"/proc/7/net/snmp": SNMP, "/proc/7/net/dev": DEV}
    port = tmp_path / "mlx5_0" / "ports" / "1" / "counters"
    port.mkdir(parents=True)
    (port / "symbol_error").write_text("6\n")
    hardware = port.parent / "hw_counters"
    hardware.mkdir()
    (hardware / "packet_seq_err").write_text("7\n")
    (hardware / "out_of_sequence").write_text("1000\n")  # adaptive routing, no error
    real = network.read
    monkeypatch.setattr(network, "read", lambda path: files.get(path) or real(path))
    nowhere = tmp_path / "none"
    assert count_network(7, tmp_path, nowhere) == NetworkCounts(5000, 12, 2 + 3 + 4 + 5 + 6 + 7)
    files.clear()
    assert count_network(2**22 - 1, nowhere, nowhere) == NetworkCounts()


def test_the_speed_of_ports_that_are_up_is_added(tmp_path: Path) -> None:
    infiniband, devices = tmp_path / "infiniband", tmp_path / "net"
    for number, (rate, state) in enumerate(
        [("400 Gb/sec (4X NDR)", "4: ACTIVE"), ("100 Gb/sec", "4: ACTIVE"), ("400", "1: DOWN")]
    ):
        port = infiniband / f"mlx5_{number}" / "ports" / "1"
        port.mkdir(parents=True)
        (port / "rate").write_text(rate)
        (port / "state").write_text(state)
    for name, state, speed, is_card in (
        ("eth0", "up", "25000", True), ("eth1", "down", "25000", True),
        ("eth2", "up", "-1", True), ("veth0", "up", "10000", False),
    ):  # fmt: skip
        (devices / name).mkdir(parents=True)
        (devices / name / "operstate").write_text(state)
        (devices / name / "speed").write_text(speed)
        (devices / name / "device").mkdir() if is_card else None
    assert count_network(1, infiniband, devices).speed_gbits == 500.0
    counted = count_network(1, tmp_path / "none", devices)
    assert counted.speed_gbits == 25.0
    assert (
        signals_between(BEFORE, replace(BEFORE, at_s=14.0, network=counted))[Signal.NIC_SPEED]
        == 25.0
    )


def test_a_lossy_link_shows_in_the_retransmits_of_its_namespace() -> None:
    """A queue that is too short for its rate drops segments of a real TCP connection."""
    if os.geteuid():
        pytest.skip("a network namespace of its own needs root")
    script = Path(lossy_link.__file__)
    found = subprocess.run(
        ["unshare", "-n", sys.executable, str(script)],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    if found.returncode == lossy_link.NO_SHAPING:
        pytest.skip("this kernel cannot shape traffic")
    before, after = (NetworkCounts(*map(int, line.split())) for line in found.stdout.splitlines())
    first = replace(BEFORE, network=before)
    assert (
        signals_between(first, replace(first, at_s=14.0, network=after))[Signal.RETRANSMIT_SHARE]
        > 0.005
    )


def test_counters_of_this_process_grow_and_those_of_no_process_are_none() -> None:
    first = take_reading(os.getpid(), 0.0, driving_threads(os.getpid()))
    sum(range(2_000_000))
    second = take_reading(os.getpid(), 1.0, [os.getpid()])
    assert first is not None
    assert second is not None
    assert second.threads.run_ns > first.threads.run_ns
    assert count_threads(2**22 - 1, [2**22 - 1]) is None
    assert take_reading(2**22 - 1, 0.0, []) is None
    assert children_of(2**22 - 1) == []
    assert comm_of(2**22 - 1) == ""
