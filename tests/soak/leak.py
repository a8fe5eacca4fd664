"""A process that leaks memory and file handles: on every line that it reads, or every few seconds.

It exists to show that a leak is noticed.
"""

import argparse
import os
import sys
import time

MEMORY_BYTES = 256 << 10
held: list[object] = []


def leak() -> None:
    """Keep some memory, all of it touched, and one file handle."""
    held.append((bytearray(os.urandom(MEMORY_BYTES)), os.open(os.devnull, os.O_RDONLY)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--every", type=float, help="seconds; without it, lines are read")
    given = parser.parse_args()
    print("ready", flush=True)
    while given.every:
        leak()
        time.sleep(given.every)
    for line in sys.stdin:
        if line.strip() == "leak":
            leak()
        print("done", flush=True)


if __name__ == "__main__":
    main()
