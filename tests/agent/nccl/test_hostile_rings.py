"""Rings that another user of the machine made up: an error or a limit of its own, nothing more."""

import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.ring_model import ModelRing

from ingero.agent.nccl import owners
from ingero.agent.nccl import rings as rings_module
from ingero.agent.nccl.folders import remove_same, ring_folders
from ingero.agent.nccl.rings import MAX_RINGS_PER_USER, OPENED_PER_SCAN, Rings
from ingero.agent.processes.discover import running_since
from ingero.contract import nccl_ring
from ingero.contract.nccl_ring import MAX_SLOTS, RECORD, decode_ring
from ingero.errors import IngeroError

PID = os.getpid()
root_only = pytest.mark.skipif(os.geteuid() != 0, reason="giving a file away needs root")


def make_ring(folder: Path, number: int = 1, **layout: int) -> ModelRing:
    ticks = running_since(PID)
    assert ticks is not None
    return ModelRing(folder / f"ingero-nccl-{PID}-{ticks}-{number}", ticks=ticks, **layout)


def make_victim(folder: Path) -> ModelRing:
    """A ring with one good record, listed after the others."""
    victim = make_ring(folder, 999_999)
    victim.write()
    return victim


def polled(rings: Rings, seconds: int = 1) -> int:
    return sum(len(batch.records) for now in range(seconds) for batch in rings.poll(float(now)))


@pytest.mark.parametrize("head", [2**64 - 1, 2**63, 2**63 - 1, 2**48 + 1])
def test_impossible_counter_ends_one_ring_only(tmp_path: Path, head: int) -> None:
    late, early = make_ring(tmp_path, 1), make_ring(tmp_path, 2)
    early.head = head
    early.write_header()
    make_victim(tmp_path)
    rings = Rings((tmp_path,))
    assert polled(rings) == 1
    late.head = head
    late.write_header()
    assert polled(rings, 3) == 0
    assert set(rings.refused) == {late.path, early.path}
    assert all("counter head" in reason for reason in rings.refused.values())


@pytest.mark.parametrize("name", nccl_ring.COUNTERS)
def test_no_counter_exceeds_what_a_database_holds(tmp_path: Path, name: str) -> None:
    ring = make_ring(tmp_path)
    ring.header[name] = 2**64 - 1
    os.pwrite(ring.fd, ring.header.tobytes(), 0)
    rings = Rings((tmp_path,))
    assert rings.poll(0.0) == []
    assert list(rings.refused) == [ring.path]


@pytest.mark.parametrize(
    "values",
    [
        {"enqueue_ns": 2**64 - 1},
        {"gpu_start_ns": 2**63, "gpu_stop_ns": 0},
        {"host_stop_ns": 2**62},
        {"count": 2**64 - 1},
        {"seq": 2**63},
        {"rank": -1},
        {"rank": 5, "nranks": 4},
        {"nranks": 2**31 - 1},
    ],
)
def test_record_with_impossible_values_is_counted_and_not_delivered(
    tmp_path: Path, values: dict[str, int]
) -> None:
    ring = make_ring(tmp_path)
    ring.write(**values)
    ring.write()
    rings = Rings((tmp_path,))
    assert polled(rings, 3) == 1
    assert rings.counts.torn == 1


def test_control_characters_reach_nobody(tmp_path: Path) -> None:
    ring = make_ring(tmp_path)
    ring.header["job"] = b"\x1b]0;owned\x07"
    ring.write_header()
    ring.write(op=b"\x1b[2J", datatype=b"\x9b31m")
    (batch,) = Rings((tmp_path,)).poll(0.0)
    assert batch.header.job == "\ufffd]0;owned\ufffd"
    assert batch.collectives.ops == ("\ufffd[2J",)


def test_ring_with_ever_new_operations_is_refused(tmp_path: Path) -> None:
    ring = make_ring(tmp_path, slots=128)
    for index in range(100):
        ring.write(op=b"op%d" % index)
    rings = Rings((tmp_path,))
    assert rings.poll(0.0) == []
    assert "names over 64 operations" in rings.refused[ring.path]


def test_empty_ring_that_claims_records_is_refused(tmp_path: Path) -> None:
    """A sparse file costs its owner nothing; reading it over and over is what costs."""
    sparse = make_ring(tmp_path, slots=MAX_SLOTS)
    sparse.head = MAX_SLOTS
    sparse.write_header()
    rings = Rings((tmp_path,))
    polled(rings, 3)
    assert "are not whole" in rings.refused[sparse.path]


def test_sparse_rings_use_up_their_own_users_time_only(tmp_path: Path) -> None:
    """Eight large rings whose heads run ahead at every poll; each poll stays short."""
    sparse = [make_ring(tmp_path, number, slots=MAX_SLOTS) for number in range(1, 9)]
    rings = Rings((tmp_path,))
    rings.poll(0.0)
    began_s = time.thread_time()
    for step in range(1, 21):
        for ring in sparse:
            ring.head += MAX_SLOTS
            ring.write_header()
        rings.poll(step / 100)
    assert rings.records.refusals + rings.cpu.refusals > 0
    assert time.thread_time() - began_s < 2.0, "twenty polls, a fifth of a second"


def test_valid_records_in_a_flood_are_read_within_the_budget(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(rings_module, "RECORDS_PER_S", 100)
    monkeypatch.setattr(rings_module, "RECORDS_BURST", 100)
    rings = Rings((tmp_path,))
    floods = [make_ring(tmp_path, number, slots=256) for number in range(1, 5)]
    for ring in floods:
        for _ in range(200):
            ring.write()
    assert polled(rings) == 200, "the first ring overdraws the budget; the others wait"
    assert sum(len(batch.records) for batch in rings.poll(20.0)) == 200
    assert sum(len(batch.records) for batch in rings.poll(40.0)) == 200, "those that waited come"


@pytest.fixture
def stranger():
    """A process of another user."""
    process = subprocess.Popen(["sleep", "60"], user=12345, group=12345)
    yield process.pid
    process.kill()
    process.wait()


def rings_of(folder: Path, pid: int, numbers: range) -> list[ModelRing]:
    """Tiny rings of a process of user 12345."""
    ticks = running_since(pid) or 0
    made = [ModelRing(folder / f"ingero-nccl-{pid}-{ticks}-{n}", 1, 0, pid, ticks) for n in numbers]
    for ring in made:
        os.chown(ring.fd, 12345, 12345)
    return made


@root_only
@pytest.mark.root
def test_a_thousand_tiny_rings_do_not_hide_the_ring_of_another_user(tmp_path, stranger) -> None:
    tiny = rings_of(tmp_path, stranger, range(1024))
    for ring in tiny:
        ring.close()
    rings = Rings((tmp_path,))
    for second in range(20):
        rings.poll(float(second))
    make_victim(tmp_path)
    assert sum(len(batch.records) for batch in rings.poll(20.0)) == 1
    assert rings.states() == {"open": 257, "refused": 0, "left_out": 1024 - 256}
    rings.close()


def test_one_user_has_a_number_of_rings(tmp_path: Path) -> None:
    tiny = [make_ring(tmp_path, number, slots=1, comms=0) for number in range(MAX_RINGS_PER_USER)]
    extra = make_ring(tmp_path, 5000)
    rings = Rings((tmp_path,))
    rings.poll(0.0)
    assert rings.states() == {
        "open": OPENED_PER_SCAN,
        "refused": 0,
        "left_out": len(tiny) + 1 - OPENED_PER_SCAN,
    }
    for second in range(1, 8):
        rings.poll(float(second))
    assert rings.states() == {"open": MAX_RINGS_PER_USER, "refused": 0, "left_out": 1}
    assert rings.notes() == [
        "1 rings are not read: up to 256 of each user and 1024 of all are",
    ]
    rings.close()
    for ring in [*tiny, extra]:
        ring.close()


@root_only
@pytest.mark.root
def test_user_with_most_rings_makes_room_for_others(tmp_path, stranger, monkeypatch) -> None:
    monkeypatch.setattr(rings_module, "MAX_RINGS", 8)
    rings_of(tmp_path, stranger, range(12))
    rings = Rings((tmp_path,))
    rings.poll(0.0)
    assert rings.states()["open"] == 8
    make_victim(tmp_path)
    assert sum(len(batch.records) for batch in rings.poll(2.0)) == 1
    assert rings.states()["open"] == 8


def test_processes_are_listed_once_for_many_rings_of_containers(
    tmp_path: Path, monkeypatch
) -> None:
    listed = []
    monkeypatch.setattr(owners, "process_ids", lambda: listed.append(1) or [PID])
    for number in range(40):
        ring = make_ring(tmp_path, number)
        ring.header["pid_namespace"] = 1
        ring.write_header()
    rings = Rings((tmp_path,))
    for step in range(8):
        rings.poll(step / 10)
    assert len(listed) == 1


def test_links_named_like_folders_of_kept_rings_are_not_followed(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("ingero.agent.nccl.folders.RING_FOLDER", str(tmp_path))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "ingero-run-a").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "ingero-run-b").mkdir()
    found = [path for path in ring_folders() if path.parent == tmp_path]
    assert found == [tmp_path / "ingero-run-b"]


def a_ring(folder: Path) -> bytearray:
    model = ModelRing(folder / "valid", slots=16, comms=2, ticks=running_since(PID) or 0)
    for _ in range(20):
        model.write()
    model.close()
    data = bytearray(model.path.read_bytes())
    model.path.unlink()
    return data


CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["header", "counters", "records", "anywhere"]),
        st.integers(0, 4095),
        st.sampled_from([0, 1, 255, 2**15, 2**31 - 1, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 1]),
        st.sampled_from([1, 2, 4, 8]),
    ),
    max_size=12,
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(changes=CHANGES, cut=st.integers(0, 9000), again=CHANGES, seal=st.booleans())
def test_changed_bytes_end_at_most_their_own_ring(tmp_path_factory, changes, cut, again, seal):
    """Whatever a ring holds, at first and while it is read, polling goes on and offline reading
    answers with a sentence."""
    folder = tmp_path_factory.mktemp("rings")
    data = _changed(a_ring(folder), changes, seal=seal)
    path = folder / f"ingero-nccl-{PID}-{running_since(PID)}"
    path.touch(0o600)
    path.write_bytes(data[: len(data) - cut * (cut % 5 == 0)])
    rings = Rings((folder,))
    for second in range(3):
        for batch in rings.poll(float(second)):
            assert (batch.collectives.end_ns >= batch.collectives.start_ns).all()
        if path.exists():
            path.write_bytes(_changed(data, again, seal=seal))
    rings.close()
    try:
        decode_ring(bytes(data), "ring")
    except IngeroError as error:
        assert str(error)


def _changed(data: bytearray, changes: list[tuple[str, int, int, int]], *, seal: bool) -> bytes:
    """Return changed bytes; with `seal`, records get stamps and checksums that fit."""
    data = bytearray(data)
    starts = {"header": 0, "counters": 1024, "records": len(data) - 16 * RECORD.itemsize}
    for where, at, value, size in changes:
        room = {"header": 168, "counters": 384, "records": 16 * RECORD.itemsize}.get(where, 1 << 30)
        offset = (starts.get(where, 0) + at % room) % (len(data) - 8)
        data[offset : offset + size] = (value % 2 ** (8 * size)).to_bytes(size, "little")
    if seal:
        records = np.frombuffer(data, RECORD, 16, len(data) - 16 * RECORD.itemsize)
        records["stamp"] = [17, 18, 19, 20, *range(5, 17)]
        records["check"] = nccl_ring.record_checks(records)
    return data


def test_a_folder_that_becomes_a_link_costs_nobody_a_ring(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A container exchanges its folder for a link to another between look and removal."""
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    for folder in (theirs, ours):
        folder.mkdir()
        (folder / "ring").touch()
    status, look = (theirs / "ring").stat(), os.stat

    def exchanged(name: str, *, dir_fd: int, follow_symlinks: bool) -> os.stat_result:
        found = look(name, dir_fd=dir_fd, follow_symlinks=follow_symlinks)
        theirs.rename(tmp_path / "moved")
        theirs.symlink_to(ours)
        return found

    monkeypatch.setattr(os, "stat", exchanged)
    remove_same(theirs / "ring", (status.st_dev, status.st_ino))
    monkeypatch.undo()
    assert (ours / "ring").exists()
    assert not (tmp_path / "moved" / "ring").exists()
    remove_same(theirs / "ring", (status.st_dev, status.st_ino))  # another file now
    assert (ours / "ring").exists()


def test_many_files_are_looked_at_in_slices(tmp_path: Path, monkeypatch) -> None:
    """Empty files cost their owner nothing; 200,000 of them held the recorder for 1.3 seconds."""
    monkeypatch.setattr(rings_module, "FILES_AT_ONCE", 5)
    looked: list[int] = []
    monkeypatch.setattr(
        rings_module,
        "ring_files",
        lambda _: (looked.append(1) or tmp_path / f"ingero-nccl-1-{n}" for n in range(12)),
    )
    clock = iter(range(1000))
    monkeypatch.setattr(rings_module.time, "thread_time", lambda: next(clock) / 1e6)
    monkeypatch.setattr(rings_module, "SCAN_SLICE_S", 0.5e-6)
    rings = Rings((tmp_path,))
    seen = []
    for second in range(3):
        rings.poll(float(second))
        seen.append(len(looked))
    assert seen == [5, 10, 12]
    rings.poll(3.0)
    assert len(looked) == 17, "a new look begins"


def test_rings_behind_many_other_files_are_found(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(rings_module, "SCAN_SLICE_S", 1e-9)
    for number in range(300):
        (tmp_path / f"another-{number}").touch(0o600)
    make_victim(tmp_path)
    rings = Rings((tmp_path,))
    assert polled(rings, 10) == 1
    assert rings.states()["open"] == 1


@root_only
@pytest.mark.root
@pytest.mark.parametrize(("link", "target"), [("dev", "victim"), ("dev/shm", "victim/shm")])
def test_a_process_with_links_in_its_root_is_not_followed(
    tmp_path: Path, link: str, target: str
) -> None:
    """Otherwise its owner could have rings of others read and removed under another name."""
    victim = tmp_path / "victim" / "shm"
    victim.mkdir(parents=True)
    place = tmp_path / "root" / link
    place.parent.mkdir(parents=True)
    place.symlink_to(tmp_path / target)
    code = "import os,sys; os.chroot(sys.argv[1]); print(flush=True); sys.stdin.read()"
    command = ["unshare", "-m", sys.executable, "-c", code, str(tmp_path / "root")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        assert Path(f"/proc/{process.pid}/root/dev/shm").samefile(victim)
        assert not any(folder.samefile(victim) for folder in ring_folders())
        process.kill()


def test_a_kept_ring_stays_under_any_name_of_its_folder(tmp_path: Path) -> None:
    kept, other = tmp_path / "ingero-run-1", tmp_path / "other"
    kept.mkdir()
    (kept / "ring").touch()
    other.symlink_to(kept)
    status = (kept / "ring").stat()
    remove_same(other / "ring", (status.st_dev, status.st_ino))
    assert (kept / "ring").exists()
