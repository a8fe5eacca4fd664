"""Advice about processes beside the job: it never harms the system or the job itself."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ingero.core.chains import recommendations
from ingero.core.chains.neighbours import Host, Neighbour

JOB = 1880
NEIGHBOURS = {
    1: Neighbour("systemd", 0, False, "/init.scope"),
    17: Neighbour("rcu_preempt", 0, True, "/"),
    90: Neighbour("renamed_by_root", 0, True, "/"),
    700: Neighbour("ingero", 0, False, "/system.slice/ingero-agent.service"),
    812: Neighbour("rsync", 0, False, "/system.slice/backup.service"),
    813: Neighbour("gzip", 0, False, "/system.slice/backup.service"),
    900: Neighbour("python", 1001, False, "/kubepods/pod7/abc"),
    1881: Neighbour("loader", 1000, False, "/jobs/train"),
    JOB: Neighbour("python", 1000, False, "/jobs/train/main"),
}
HOST = Host(8, neighbours=NEIGHBOURS)
ADVICE = (
    lambda pids, host: recommendations.lower_priority(pids, host, JOB),
    lambda pids, host: recommendations.lower_disk_priority(pids[0], host, JOB),
    lambda pids, host: recommendations.limit_neighbour(host, pids),
)


@pytest.mark.parametrize("pid", [1, 2, 17, 90, 700])
@pytest.mark.parametrize("advise", ADVICE)
def test_the_kernel_init_and_ingero_are_never_to_be_changed(advise, pid: int) -> None:
    text = advise([pid], HOST)
    assert not any(f"{word} " in text for word in ("renice", "ionice", "set-property"))
    assert "ingero-agent.service" not in text


@pytest.mark.parametrize(
    "name", ["rcu_preempt", "kworker/3:1H", "ksoftirqd/0", "kswapd0", "ingero"]
)
def test_a_recording_that_has_only_names_protects_the_same(name: str) -> None:
    assert not Host(8, {17: name}).may_change(17)
    assert Host(8, {17: "rsync"}).may_change(17)


@given(st.lists(st.sampled_from(sorted(NEIGHBOURS)), min_size=1, max_size=5, unique=True))
def test_no_mix_of_neighbours_leads_to_a_protected_one(pids: list[int]) -> None:
    text = recommendations.lower_priority(pids, HOST, JOB)
    _, _, command = text.partition("renice -n 19 -p ")
    changed = {int(word) for word in command.split("(")[0].split() if word.isdigit()}
    assert not changed & {1, 17, 90, 700}
    if any(pid not in (1, 17, 90, 700) for pid in pids):
        assert text.count("undo: ") >= 1


def test_a_unit_is_named_rather_than_its_processes() -> None:
    assert recommendations.lower_priority([812, 813], HOST, JOB) == (
        "Give backup.service (rsync (pid 812) of user 0, gzip (pid 813) of user 0) "
        "less of the CPU: "
        "systemctl set-property --runtime backup.service CPUWeight=10 "
        "(until the next start of the machine; "
        "undo: systemctl set-property --runtime backup.service CPUWeight=100)"
    )


def test_a_container_of_another_user_is_said_to_be_one() -> None:
    text = recommendations.lower_priority([900], HOST, JOB)
    assert "python (pid 900) of user 1001" in text
    assert "echo 10 > /sys/fs/cgroup/kubepods/pod7/abc/cpu.weight" in text
    assert "undo: echo 100 > /sys/fs/cgroup/kubepods/pod7/abc/cpu.weight" in text


def test_the_cgroup_that_holds_the_job_is_never_limited() -> None:
    """The loader belongs to the job: its cgroup holds the job as well."""
    text = recommendations.lower_priority([1881], HOST, JOB)
    assert text.startswith("Lower the priority of loader (pid 1881): renice -n 19 -p 1881 ")


def test_pinning_says_how_to_undo_it() -> None:
    assert recommendations.pin(JOB, Host(8)) == (
        "Give the process cores of its own: taskset -acp 1-7 1880 "
        "(moves its threads at once; undo: taskset -acp 0-7 1880)"
    )
