"""A process that stands for a rank: steps of compute and of waiting for peers, with one fault.

It is started with a mode and prints a line when its first step has ended.
"""

import gc
import os
import queue
import subprocess
import sys
import threading
import time

STEP_S, COMPUTE_S = 0.020, 0.005
WRITER = """
import sys, time
while True:
    sys.stdout.write("x")
    sys.stdout.flush()
    time.sleep({})
"""


def forward(end: float) -> None:
    while time.thread_time() < end:
        pass


def all_reduce(until: float) -> None:
    """Wait for the peers, as far as there is anything to wait for."""
    time.sleep(max(until - time.monotonic(), 0.0005))


class Nothing:
    def step(self, number: int) -> None:
        pass


class Lock:
    """Another thread holds a lock most of the time."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        threading.Thread(target=self.write_index, daemon=True).start()

    def write_index(self) -> None:
        while True:
            with self.lock:
                time.sleep(0.03)
            time.sleep(0.005)

    def step(self, number: int) -> None:
        with self.lock:
            pass


class Reader:
    """A loader thread reads from a slow pipe, and the step waits for its queue."""

    def __init__(self) -> None:
        self.batches: queue.Queue[bytes] = queue.Queue(maxsize=2)
        writer = [sys.executable, "-c", WRITER.format(0.03)]
        self.pipe = subprocess.Popen(writer, stdout=subprocess.PIPE)
        threading.Thread(target=self.fill, daemon=True).start()

    def fill(self) -> None:
        assert self.pipe.stdout
        while True:
            self.batches.put(os.read(self.pipe.stdout.fileno(), 1))

    def step(self, number: int) -> None:
        self.next_batch()

    def next_batch(self) -> bytes:
        return self.batches.get()


class Garbage:
    """Many objects, of which a full collection looks at every one, every ten steps."""

    def __init__(self) -> None:
        self.kept = [[number] for number in range(400_000)]

    def step(self, number: int) -> None:
        if number % 10 == 0:
            gc.collect()


class Interpreter:
    """Another thread runs Python without pause."""

    def __init__(self) -> None:
        threading.Thread(target=self.compress, daemon=True).start()

    def compress(self) -> None:
        while True:
            sum(number & 1 for number in range(1000))

    def step(self, number: int) -> None:
        pass


class Crowded:
    """Threads of its own need the CPU all the time, as those of libraries do."""

    def __init__(self) -> None:
        work = "import hashlib; hashlib.pbkdf2_hmac('sha256', b'', b'', 10**9)"
        for _ in range(2):  # without the interpreter lock
            threading.Thread(target=exec, args=(work,), daemon=True).start()

    def step(self, number: int) -> None:
        pass


MODES = {
    "healthy": Nothing,
    "crowded": Crowded,
    "lock": Lock,
    "reader": Reader,
    "gc": Garbage,
    "interpreter": Interpreter,
}


def main() -> None:
    fault = MODES[sys.argv[1]]()
    gc.freeze() if sys.argv[1] != "gc" else None
    number = 0
    while True:
        begin = time.monotonic()
        fault.step(number)
        forward(time.thread_time() + COMPUTE_S)
        all_reduce(begin + STEP_S)
        number += 1
        if number == 2:
            print("ready", flush=True)


if __name__ == "__main__":
    main()
