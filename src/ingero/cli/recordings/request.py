"""What a command asks the reading child, and the frames that the child answers with."""

from enum import IntEnum

import msgspec


class Frame(IntEnum):
    """The kinds of frames; `PLAN` comes first, `ANSWER`, `DONE` or `FAILURE` is the last one."""

    PLAN = 1
    FILE = 2
    RECORDS = 3
    ANSWER = 4
    DONE = 5
    FAILURE = 6


class Request(msgspec.Struct):
    """What to read and what for; dumps are the sizes of those that follow, by rank.

    For a replay, `paths` are what was asked for and the folder to search if that is an episode.
    """

    paths: list[str]
    wants_replay: bool = False
    wants_peers: bool = False
    wants_records: bool = False
    wants_heat: bool = False
    dumps: list[tuple[int, int]] = []
    problems: list[str] = []


class Plan(msgspec.Struct):
    """The limits that the child has set for itself, before it reads anything."""

    memory_bytes: int
    cpu_s: int
    wall_s: float


class Done(msgspec.Struct):
    """All records were sent; `problems` are files that could not be read."""

    problems: list[str]


class Failure(msgspec.Struct):
    """The name of an error of ours, and its sentence."""

    kind: str
    message: str
