"""All rings of a machine: adopted with their process, drained and removed with it."""

import os
import subprocess
from pathlib import Path

import pytest
from tests.support.ring_model import ModelRing

from ingero.agent.nccl import owners
from ingero.agent.nccl.folders import ring_folders
from ingero.agent.nccl.owners import ProcessIndex
from ingero.agent.nccl.rings import Rings
from ingero.agent.processes.discover import running_since


@pytest.fixture
def child():
    process = subprocess.Popen(["sleep", "60"])
    yield process
    process.kill()
    process.wait()


def make_ring(folder: Path, pid: int, ticks: int | None = None) -> ModelRing:
    ticks = running_since(pid) if ticks is None else ticks
    return ModelRing(folder / f"ingero-nccl-{pid}-{ticks}", pid=pid, ticks=ticks)


def test_a_ring_is_found_drained_and_removed_when_its_process_ends(tmp_path, child):
    model = make_ring(tmp_path, child.pid)
    rings = Rings((tmp_path,), node="n1")
    assert rings.poll(0.0) == []
    model.write()
    (batch,) = rings.poll(0.1)
    assert (batch.pid, len(batch.records), batch.is_last) == (child.pid, 1, False)
    assert batch.collectives.recorders[0].node == "n1"
    model.write()
    model.reserve()
    child.kill()
    child.wait()
    (last,) = rings.poll(0.2)
    assert (len(last.records), last.is_last, model.path.exists()) == (1, True, False)
    assert rings.poll(5.0) == []
    assert (rings.counts.records, rings.counts.torn) == (2, 1)


def test_a_zombie_has_written_its_last_record(tmp_path, child):
    model = make_ring(tmp_path, child.pid)
    model.write()
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    (batch,) = Rings((tmp_path,)).poll(0.0)
    assert batch.is_last


def test_rings_left_before_the_agent_started_are_read_once_and_removed(tmp_path):
    model = make_ring(tmp_path, os.getpid(), ticks=1)
    model.write()
    rings = Rings((tmp_path,))
    assert [batch.is_last for batch in rings.poll(0.0)] == [True]
    assert not model.path.exists()


def test_a_reused_process_number_is_not_the_same_process(tmp_path):
    assert ProcessIndex().is_gone(_header(make_ring(tmp_path, os.getpid(), ticks=2)))
    assert not ProcessIndex().is_gone(_header(make_ring(tmp_path, os.getpid())))


def test_a_process_we_cannot_see_is_not_called_gone(tmp_path, monkeypatch):
    model = make_ring(tmp_path, 4_000_000, ticks=3)
    model.header["pid_namespace"] = 1
    model.write_header()
    monkeypatch.setattr(owners, "pid_namespace", lambda: 2)
    assert not ProcessIndex().is_gone(_header(model))
    monkeypatch.setattr(owners, "pid_namespace", lambda: owners.INITIAL_PID_NAMESPACE)
    assert ProcessIndex().is_gone(_header(model))


def test_a_containers_process_is_found_by_its_inner_number(tmp_path, child, monkeypatch):
    model = make_ring(tmp_path, child.pid)
    # not ours: the number is looked for in every process's own namespace
    model.header["pid_namespace"] = 1
    model.write_header()
    process = ProcessIndex().find(_header(model))
    assert process is not None
    assert process.pid == child.pid


def test_processes_of_rings_go_by_the_number_they_have_here(tmp_path, child, monkeypatch):
    """Probes report a process under its pid here.

    Under its inner pid its collectives would be kept twice.
    """
    model = make_ring(tmp_path, 7, ticks=running_since(child.pid))
    model.header["pid_namespace"] = 1
    model.write_header()
    monkeypatch.setattr(
        owners, "read_status", lambda pid: {"NSpid": [str(pid), "7"], "Uid": [str(os.getuid())]}
    )
    monkeypatch.setattr(owners, "process_ids", lambda: [child.pid])
    rings = Rings((tmp_path,))
    rings.poll(0.0)
    assert rings.pids() == {child.pid}


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0, reason="giving a file to another user needs root")
def test_a_ring_of_another_user_than_its_process_is_refused(tmp_path, child):
    model = make_ring(tmp_path, child.pid)
    os.chown(model.path, 12345, 12345)
    rings = Rings((tmp_path,))
    assert rings.poll(0.0) == []
    assert "belongs to user 12345" in rings.refused[model.path]


def test_foreign_files_are_refused_once_and_left_alone(tmp_path):
    path = tmp_path / f"ingero-nccl-{os.getpid()}-1"
    path.write_bytes(b"x" * 5000)
    path.chmod(0o600)
    (tmp_path / "ingero-nccl-notes").write_text("not ours")
    rings = Rings((tmp_path,))
    assert rings.poll(0.0) == [] == rings.poll(2.0)
    assert list(rings.refused) == [path]
    assert path.exists()
    path.unlink()
    rings.poll(4.0)
    assert rings.refused == {}, "a file that is gone is nobody's problem any more"


def test_a_ring_that_is_cut_while_read_is_dropped_with_a_reason(tmp_path, child):
    model = make_ring(tmp_path, child.pid)
    rings = Rings((tmp_path,))
    rings.poll(0.0)
    os.ftruncate(model.fd, 100)
    assert rings.poll(0.1) == []
    assert "truncated" in rings.refused[model.path]


def test_kept_rings_are_read_but_not_removed(tmp_path):
    folder = tmp_path / "ingero-run-x"
    folder.mkdir()
    model = make_ring(folder, os.getpid(), ticks=1)
    model.write()
    rings = Rings((folder,))
    assert len(rings.poll(0.0)) == 1
    assert rings.poll(5.0) == []
    assert model.path.exists()


def test_the_shared_memory_of_the_machine_is_searched():
    assert Path("/dev/shm") in ring_folders()


def _header(model: ModelRing):
    from ingero.contract.nccl_ring import decode_header

    return decode_header(model.path.read_bytes(), "model")
