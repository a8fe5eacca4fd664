"""A synchronous job of real processes that calls the real plugin as NCCL's profiler does.

    python live_job.py '{"name": "plain", "folders": ["/dev/shm/a"], "plugin": "…/libnccl….so"}'

Compute is simulated: a rank sleeps until an absolute deadline, which is one own time after it left
the barrier, minus the recent delay of its wake-ups. Each step ends in a real barrier of all ranks.
The "GPU" of each rank has its own clock. Ranks are spread evenly over `folders`, one per simulated
host; `skews_ns` shifts the wall clock of each host where the library of `skewed_clock.c` is
preloaded. Each line on stdin is a JSON object with the slowdown from now on, or `{}` for none. The
job ends at the end of its input and then prints one JSON line with what each rank measured.
"""

import ctypes
import json
import multiprocessing
import os
import random
import statistics
import sys
import threading
import time
from collections import deque
from typing import Any

PLUGIN_EVENTS = {"collective": 1 << 1, "channel": 1 << 6}
CHANNEL_STOP = 22
BUCKETS = (
    1 << 20,
    2 << 20,
    4 << 20,
    8 << 20,
    16 << 20,
)  # gradient buckets, the last and largest ends a step
WAKE_UPS = 21  # the calibration follows the last ones


class Descriptor(ctypes.Structure):
    """`ncclProfilerEventDescr_v5_t` with the fields of a collective."""

    _fields_ = [
        ("type", ctypes.c_uint64),
        ("parent", ctypes.c_void_p),
        ("rank", ctypes.c_int),
        ("seq", ctypes.c_uint64),
        ("func", ctypes.c_char_p),
        ("send", ctypes.c_void_p),
        ("recv", ctypes.c_void_p),
        ("count", ctypes.c_size_t),
        ("root", ctypes.c_int),
        ("datatype", ctypes.c_char_p),
        ("channels", ctypes.c_uint8),
        ("warps", ctypes.c_uint8),
        ("algo", ctypes.c_char_p),
        ("proto", ctypes.c_char_p),
        ("group", ctypes.c_void_p),
    ]


class Channel(ctypes.Structure):
    """The same with the fields of a kernel channel, which start at the sequence number."""

    _fields_ = [
        ("type", ctypes.c_uint64),
        ("parent", ctypes.c_void_p),
        ("rank", ctypes.c_int),
        ("gap", ctypes.c_uint32),
        ("channel", ctypes.c_uint8),
        ("gpu_ns", ctypes.c_uint64),
        ("rest", ctypes.c_char * 96),
    ]


INIT = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.POINTER(ctypes.c_void_p),
    ctypes.c_uint64,
    ctypes.POINTER(ctypes.c_int),
    ctypes.c_char_p,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_void_p,
)
START = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p), ctypes.c_void_p
)
STOP = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
STATE = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(ctypes.c_uint64)
)


class Profiler(ctypes.Structure):
    _fields_ = [
        ("name", ctypes.c_char_p),
        ("init", INIT),
        ("start", START),
        ("stop", STOP),
        ("state", STATE),
        ("finalize", STOP),
    ]


class Communicator:
    """One communicator as NCCL shows it to the plugin."""

    def __init__(self, library: str, comm: int, rank: int, nranks: int) -> None:
        self.plugin = Profiler.in_dll(ctypes.CDLL(library), "ncclProfiler_v5")
        self.context = ctypes.c_void_p()
        mask = ctypes.c_int()
        self.plugin.init(
            ctypes.byref(self.context), comm, ctypes.byref(mask), b"world", 1, nranks, rank, None
        )
        assert mask.value, "the plugin made no ring"
        self.rank, self.seq = rank, 0

    def enqueue(self, count: int) -> Any:
        """The host's call; returns the handle of the operation."""
        event = Descriptor(
            type=PLUGIN_EVENTS["collective"],
            rank=self.rank,
            seq=self.seq,
            func=b"AllReduce",
            count=count,
            datatype=b"ncclBfloat16",
            channels=1,
            warps=8,
            algo=b"RING",
            proto=b"SIMPLE",
        )
        self.seq += 1
        handle = ctypes.c_void_p()
        self.plugin.start(self.context, ctypes.byref(handle), ctypes.byref(event))
        self.plugin.stop(handle)
        return handle

    def ran(self, operation: Any, start_ns: int, stop_ns: int) -> None:
        """What the GPU did, as NCCL's proxy thread tells it afterwards."""
        event = Channel(
            type=PLUGIN_EVENTS["channel"],
            parent=operation,
            rank=self.rank,
            channel=0,
            gpu_ns=start_ns,
        )
        handle = ctypes.c_void_p()
        self.plugin.start(self.context, ctypes.byref(handle), ctypes.byref(event))
        self.plugin.state(handle, CHANNEL_STOP, ctypes.byref(ctypes.c_uint64(stop_ns)))
        self.plugin.stop(handle)


def sleep_until(deadline_ns: int) -> int:
    """Returns how late it woke up."""
    while (left := deadline_ns - time.monotonic_ns()) > 0:
        time.sleep(left / 1e9)
    return time.monotonic_ns() - deadline_ns


class Alarm:
    """Wakes up at a deadline, less the delay that wake-ups had lately."""

    def __init__(self) -> None:
        self.delays: deque[int] = deque(maxlen=WAKE_UPS)
        for _ in range(WAKE_UPS):
            self.delays.append(sleep_until(time.monotonic_ns() + 20_000_000))

    def wait_for(self, deadline_ns: int) -> int:
        """Returns how far off it woke up."""
        usual = int(statistics.median(self.delays))
        self.delays.append(sleep_until(deadline_ns - usual))
        return self.delays[-1] - usual


class Slowdown(ctypes.Structure):
    """The present slowdown in shared memory: `share` of own time, or `late_ms` every few steps."""

    _fields_ = [
        ("rank", ctypes.c_int),
        ("share", ctypes.c_double),
        ("every", ctypes.c_int),
        ("late_ms", ctypes.c_double),
        ("on_host", ctypes.c_bool),
    ]

    def set(self, slow: dict[str, Any]) -> None:
        self.rank = -1
        self.share, self.every, self.late_ms = (
            slow.get("share", 0.0),
            slow.get("every", 0),
            slow.get("late_ms", 0.0),
        )
        self.on_host = slow.get("class") == "host"
        self.rank = slow.get("rank", -1)

    def extra_ns(self, rank: int, step: int, own_ns: int) -> int:
        if rank != self.rank:
            return 0
        late_ms = self.late_ms if self.every and step % self.every == 0 else 0.0
        return int(own_ns * self.share + late_ms * 1e6)


def run_rank(
    job: dict[str, Any], rank: int, barrier: Any, slow: Any, end: Any, results: Any
) -> None:
    world, folders = job["world"], job["folders"]
    host = rank * len(folders) // world
    os.environ |= {
        "INGERO_NCCL_RING_DIR": folders[host],
        "INGERO_JOB_ID": job["name"],
        "RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_RANK": str(rank % (world // len(folders))),
    }
    if "skews_ns" in job:
        ctypes.CDLL(job["clock"]).set_skew_ns(ctypes.c_int64(job["skews_ns"][host]))
    comm = Communicator(job["plugin"], 0xC0FFEE, rank, world)
    alarm = Alarm()
    gpu_base = random.Random(rank).randrange(10**15)
    own_ns = int(job["own_ms"] * 1e6)
    late, step, began_ns, stopping = [], 0, time.monotonic_ns(), False
    barrier.wait(30)
    free_ns = time.monotonic_ns()
    while not stopping:
        extra_ns = slow.extra_ns(rank, step, own_ns)
        if slow.on_host:  # the host is busy with something else before it enqueues
            sleep_until(free_ns + extra_ns)
        operations = [comm.enqueue(bucket // 2) for bucket in BUCKETS]
        late.append(alarm.wait_for(free_ns + own_ns + extra_ns))
        arrived_ns = time.monotonic_ns()
        barrier.wait(30)
        # read behind a barrier: all ranks see the same, but for the step it is set in
        stopping = bool(end.value)
        free_ns = time.monotonic_ns()
        # the first waits for all, the others follow at once
        for number, operation in enumerate(operations):
            start = arrived_ns if number == 0 else free_ns + number * 1000
            comm.ran(operation, gpu_base + start, gpu_base + free_ns + (number + 1) * 1000)
        step += 1
    took_s = (free_ns - began_ns) / 1e9
    errors_ms = sorted(abs(value) / 1e6 for value in late)
    results.put(
        {
            "rank": rank,
            "steps": step,
            "steps_per_s": step / took_s,
            "wake_up_error_ms": statistics.median(errors_ms),
            "wake_up_p99_ms": errors_ms[int(0.99 * (len(errors_ms) - 1))],
        }
    )


def main() -> None:
    job = {"world": 8, "own_ms": 250} | json.loads(sys.argv[1])
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(job["world"]), context.SimpleQueue()
    slow, end = context.Value(Slowdown, lock=False), context.Value("b", 0)
    slow.set({})
    ranks = [
        context.Process(target=run_rank, args=(job, rank, barrier, slow, end, results))
        for rank in range(job["world"])
    ]
    for rank in ranks:
        rank.start()

    def listen() -> None:
        for line in sys.stdin:
            slow.set(json.loads(line))
        end.value = 1

    threading.Thread(target=listen, daemon=True).start()
    for rank in ranks:
        rank.join()
    found = []
    while not results.empty():
        found.append(results.get())
    print(json.dumps(sorted(found, key=lambda each: each["rank"])), flush=True)


if __name__ == "__main__":
    main()
