"""The rings of real jobs once more, in real time, with the real agent and Fleet beside them.

    python -m tests.hardware.real_jobs.play pp OUT/pp-1.tar …

Ring files fill up as they did on the GPU, record by record at their recorded times, shifted to
now. Processes that only sleep stand in for the ranks. What Fleet says is compared with the steps
of the job as in the live run; a replay by a hand-driven clock (`replay`) polls at whole seconds
only. Takes as long as the job did.
"""

import argparse
import os
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import numpy as np
from tests.hardware.real_jobs.archive import Archive, read
from tests.hardware.real_jobs.machine import commit
from tests.hardware.real_jobs.replay import phases_passed, recorded_ranks, steps_of
from tests.hardware.real_jobs.report import calm_table, table
from tests.hardware.real_jobs.rows import Heard, Passed, Run, rows_of
from tests.hardware.real_jobs.services import Services
from tests.support.ring_recordings import RankRecording

from ingero.agent.nccl.owners import pid_namespace
from ingero.agent.processes.discover import running_since
from ingero.contract.nccl_ring import COMM, HEADER, RECORD, record_checks

TIMES = ("enqueue_ns", "gpu_start_ns", "gpu_stop_ns", "host_stop_ns")
PUBLISH_S, LISTEN_S = 0.002, 1.0
BEGIN_NS, END_NS = 10**9, 3 * 10**9  # before the first record, and after the last


class PlayedRing:
    """A ring file that fills up as time passes."""

    def __init__(
        self, recording: RankRecording, head: bytes, folder: Path, pid: int, shift_ns: int
    ) -> None:
        self._records = recording.records
        for name in TIMES:
            known = self._records[name] > 0
            self._records[name] += np.where(known, shift_ns, 0).astype(np.uint64)
        self._records["check"] = record_checks(self._records)
        self._head = bytearray(head)
        self._header = np.frombuffer(self._head, HEADER, 1)  # writable
        started = running_since(pid) or 0
        facts = {"head": 0, "pid": pid, "start_ticks": started, "uid": os.getuid()}
        for name, value in (facts | {"pid_namespace": pid_namespace()}).items():
            self._header[name] = value
        self._header["created_ns"] += np.uint64(shift_ns)
        self._slots = int(self._header["slots"][0])
        self._at = HEADER.itemsize + int(self._header["comms"][0]) * COMM.itemsize
        self._due_ns = np.maximum.accumulate(self._records["host_stop_ns"].astype(np.int64))
        self._path = folder / f"ingero-nccl-{pid}-{started}"
        self._fd: int | None = None
        self._published = 0

    @property
    def last_ns(self) -> int:
        return int(self._due_ns[-1])

    def publish(self, now_ns: int) -> None:
        """Write what is due; the file is made when the plugin made it."""
        if self._fd is None:
            if now_ns < int(self._header["created_ns"][0]):
                return
            self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
            os.ftruncate(self._fd, self._at + self._slots * RECORD.itemsize)
            os.pwrite(self._fd, bytes(self._head), 0)
        due, first = int(np.searchsorted(self._due_ns, now_ns, side="right")), self._published
        while first < due:
            slot = first % self._slots
            end = min(due, first + self._slots - slot)
            data = self._records[first:end].tobytes()
            os.pwrite(self._fd, data, self._at + slot * RECORD.itemsize)
            first = end
        if due > self._published:
            self._published = due
            self._header["head"] = due
            os.pwrite(self._fd, self._header.tobytes(), 0)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)


def play(job: str, archive: Archive, out: Path) -> list[Heard]:
    """Play the rings of a job, and return what was heard meanwhile, by the clock of the job."""
    ranks = recorded_ranks(archive)
    folder = Path(tempfile.mkdtemp(prefix="ingero-played-", dir="/dev/shm"))
    stand_ins = [subprocess.Popen(["sleep", "3600"]) for _ in ranks]
    services, rings = Services(folder, out), []
    try:
        services.require_answers()
        created = [np.frombuffer(rank.header, HEADER)["created_ns"][0] for rank in ranks]
        shift_ns = time.time_ns() - int(min(created)) + BEGIN_NS
        for rank, process in zip(ranks, stand_ins, strict=True):
            head = archive.heads[rank.name]
            rings.append(PlayedRing(rank, head, folder, process.pid, shift_ns))
        return _listen(job, services, rings, phases_passed(archive), shift_ns)
    finally:
        services.close()
        for process in stand_ins:
            process.terminate()
            process.wait()
        for ring in rings:
            ring.close()
        shutil.rmtree(folder, ignore_errors=True)


def _listen(
    job: str, services: Services, rings: list[PlayedRing], passed: list[Passed], shift_ns: int
) -> list[Heard]:
    heard: list[Heard] = []
    judged: dict[str, int] = {}
    listen_s, end_ns = time.monotonic(), max(ring.last_ns for ring in rings) + END_NS
    while (now_ns := time.time_ns()) < end_ns:
        for ring in rings:
            ring.publish(now_ns)
        if time.monotonic() >= listen_s:
            listen_s += LISTEN_S
            verdicts, counts = services.status(job)
            heard.append(Heard((time.time_ns() - shift_ns) / 1e9, verdicts))
            if counts != judged:  # a rank that goes silent or starts over shows here
                judged = counts
                print(f"{heard[-1].at_s - passed[0].began_s:+.0f} s: {counts}", flush=True)
        time.sleep(PUBLISH_S)
    return heard


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("job")
    parser.add_argument("archives", type=Path, nargs="+")
    args = parser.parse_args()
    archive = read(args.archives)
    with tempfile.TemporaryDirectory() as out:
        heard = play(args.job, archive, Path(out))
    rows = rows_of(Run(args.job, phases_passed(archive), heard, steps_of(archive)))
    facts = {"commit": commit(), "together": 1, "machine": "played"}
    rows = [facts | row for row in rows]
    print(table(rows))
    print(calm_table(rows))


if __name__ == "__main__":
    main()
