"""`make mutants` changes the source a little, many times, and counts how often a test notices.

    python -m tests.mutation --room health --minutes 10 --resume

Prints the share of killed mutants of each room with its lower bound, and lists the survivors.
`accepted.txt` holds survivors, each with the reason why no test notices it.

What was tried is kept in `.cache/mutants`, by the content of the changed file. With `--resume`,
killed mutants are not tried again, so that a busy machine can do a room in slices; survivors are
tried again with the tests of today, after those that were never tried.
"""

import argparse
import hashlib
import resource
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.mutation.kept import Kept
from tests.mutation.mutants import Mutant, mutants_of
from tests.mutation.rooms import ROOMS, ROOT, SOURCE, Room, lower_bound
from tests.mutation.trial import OPTIONS, Trials

ACCEPTED = Path(__file__).with_name("accepted.txt")
NEEDED = 0.85


def main() -> int:
    """Try every room; return 1 if too many mutants survive in one of them."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation")
    parser.add_argument("--room", action="append", choices=[room.name for room in ROOMS])
    parser.add_argument("--only", default="", help="only mutants whose name contains this text")
    parser.add_argument("--sample", type=int, help="at most this many mutants of each room")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--resume", action="store_true", help="go on where the last run ended")
    parser.add_argument("--tests", nargs="+", help="try survivors of before, with these tests only")
    parser.add_argument("--killers", action="store_true", help="print which test noticed what")
    given = parser.parse_args()
    rooms = [room for room in ROOMS if given.room is None or room.name in given.room]
    if len(rooms) == 1:
        return 0 if try_room(rooms[0], given) else 1
    end_s, status = time.monotonic() + 60 * given.minutes, 0
    for number, room in enumerate(rooms):  # each in a process of its own, with only its modules
        given.minutes = (end_s - time.monotonic()) / 60 / (len(rooms) - number)
        status |= subprocess.run(command(room, given), cwd=ROOT, check=False).returncode
    return status


def command(room: Room, given: argparse.Namespace) -> list[str]:
    """Return the command that tries one room."""
    options = [
        f"--{name}={getattr(given, name)}" for name in ("only", "minutes", "seed", "workers")
    ]
    options += [f"--sample={given.sample}"] if given.sample else []
    options += ["--killers"] if given.killers else []
    options += ["--resume"] if given.resume else []
    return [sys.executable, "-m", "tests.mutation", "--room", room.name, *options]


def try_room(room: Room, given: argparse.Namespace) -> bool:
    """Try the mutants of one room; return whether enough were killed."""
    began_s = time.monotonic()
    chosen = sample(room, given.seed, given.sample or room.sample, given.only)
    kept = Kept.of(room, is_resumed=given.resume or bool(given.tests))
    end_s = began_s + 60 * given.minutes
    trials = Trials(room, kept, chosen, end_s, given.workers, tests=given.tests)
    if trials.mutants:
        pytest.main([*OPTIONS, *trials.room.test_paths()], plugins=[trials])
    is_enough = report(trials, len(chosen), time.monotonic() - began_s)
    for mutant, test in trials.killed.items() if given.killers else ():
        print(f"  killed: {mutant.name}  ({test})")
    return is_enough


def sample(room: Room, seed: int, most: int | None, only: str) -> list[Mutant]:
    """Return the mutants of a room in a random order, so that a part of them is a sample.

    The order follows from their names, so that a sample stays the same while other code changes.
    """
    found = [mutant for file in room.files() for mutant in mutants_of(SOURCE, file)]
    found.sort(key=lambda mutant: hashlib.sha256(f"{seed} {mutant.name}".encode()).digest())
    return [mutant for mutant in found if only in mutant.name][:most]


def report(trials: Trials, chosen: int, took_s: float) -> bool:
    """Print one room; return whether enough mutants were killed, accepted ones counted against."""
    killed, reasons = len(trials.killed), accepted()
    count = killed + len(trials.survived)
    harmless = sum(mutant.name in reasons for mutant in trials.survived)
    share = killed / count if count else 0.0
    limits = sum(test.startswith("time limit") for test in trials.killed.values())
    print(
        f"{trials.room.name}: {killed} of {count} mutants killed ({share:.1%}, at least "
        f"{lower_bound(killed, count):.1%}); without {harmless} accepted survivors "
        f"{killed / max(1, count - harmless):.1%}; {limits} by a limit of time; "
        f"{chosen - count} not tried; {took_s:.0f} s, {used_s():.0f} s of a processor"
    )
    for name in sorted(mutant.name for mutant in trials.survived):
        print(f"  survived: {name}{f'  ({reasons[name]})' if name in reasons else ''}")
    return share >= NEEDED


def used_s() -> float:
    """Return how long this process and those that it has started have run so far."""
    of = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in of)


def accepted() -> dict[str, str]:
    """Return the reason of every survivor that has one."""
    lines = ACCEPTED.read_text(encoding="utf-8").splitlines()
    kept = (line.rpartition(" # ") for line in lines if line and not line.startswith("#"))
    return {name: reason for name, _, reason in kept}


if __name__ == "__main__":
    sys.exit(main())
