"""`make mutants` changes the source a little, many times, and counts how often a test notices.

    python -m tests.mutation --room health --minutes 10

Prints the share of killed mutants of each room with its lower bound, and lists the survivors.
`accepted.txt` holds survivors that are no gap, each with its reason.
"""

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.mutation.mutants import Mutant, mutants_of
from tests.mutation.rooms import ROOMS, SOURCE, Room, lower_bound
from tests.mutation.trial import Copy

ACCEPTED = Path(__file__).with_name("accepted.txt")
NEEDED = 0.85


def main() -> int:
    """Try every room; return 1 if too many mutants survive in one of them."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation")
    parser.add_argument("--room", action="append", choices=[room.name for room in ROOMS])
    parser.add_argument("--file", default="", help="only files whose path contains this text")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--workers", type=int, default=2)
    given = parser.parse_args()
    rooms = [room for room in ROOMS if given.room is None or room.name in given.room]
    end_s, is_enough = time.monotonic() + 60 * given.minutes, True
    with tempfile.TemporaryDirectory() as folder:
        copies = [Copy(Path(folder) / str(number)) for number in range(given.workers)]
        for number, room in enumerate(rooms):
            left_s = (end_s - time.monotonic()) / (len(rooms) - number)
            chosen = [m for m in sample(room, given.seed) if given.file in m.file]
            results = dict(tried(copies, chosen, room, time.monotonic() + left_s))
            is_enough &= report(room, results, len(chosen))
    return 0 if is_enough else 1


def sample(room: Room, seed: int) -> list[Mutant]:
    """Return the mutants of a room in a random order, so that a part of them is a sample."""
    found = [mutant for file in room.files() for mutant in mutants_of(SOURCE, file)]
    random.Random(seed).shuffle(found)
    return found[: room.sample]


def tried(
    copies: list[Copy], mutants: list[Mutant], room: Room, end_s: float
) -> Iterator[tuple[Mutant, bool]]:
    """Yield whether each mutant was killed, until the time is over."""
    began_s = time.monotonic()
    if not copies[0].passes(list(room.tests), 600):
        sys.exit(f"the tests of {room.name} fail without any change")
    timeout_s = 10 + 5 * (time.monotonic() - began_s)
    waiting = iter(mutants)

    def work(own: Copy) -> list[tuple[Mutant, bool]]:
        done = []
        while time.monotonic() < end_s and (mutant := next(waiting, None)) is not None:
            done.append((mutant, own.is_killed(mutant, room, timeout_s)))
        return done

    with ThreadPoolExecutor(len(copies)) as pool:
        for results in pool.map(work, copies):
            yield from results


def report(room: Room, results: dict[Mutant, bool], chosen: int) -> bool:
    """Print one room; return whether enough mutants were killed."""
    killed, count = sum(results.values()), len(results)
    reasons = accepted()
    survivors = sorted(mutant.name for mutant, is_killed in results.items() if not is_killed)
    share = killed / count if count else 0.0
    print(
        f"{room.name}: {killed} of {count} mutants killed ({share:.1%}, at least "
        f"{lower_bound(killed, count):.1%}); {chosen - count} not tried"
    )
    for name in survivors:
        print(f"  survived: {name}{f'  ({reasons[name]})' if name in reasons else ''}")
    return share >= NEEDED


def accepted() -> dict[str, str]:
    """Return the reason of every survivor that is no gap."""
    lines = ACCEPTED.read_text(encoding="utf-8").splitlines()
    kept = (line.partition(" # ") for line in lines if line and not line.startswith("#"))
    return {name: reason for name, _, reason in kept}


if __name__ == "__main__":
    sys.exit(main())
