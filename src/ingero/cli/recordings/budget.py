"""Limits on memory and time for reading, in proportion to the size of the files."""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from ingero.children.limits import ChildLimits
from ingero.errors import ForeignFile
from ingero.files import regular_stream
from ingero.importers.detect import DEFAULT_LIMITS, find_files
from ingero.storage.input_log import list_files

# Measured on recorded jobs: parsed JSON takes about ten times its size, and less than a second
# per megabyte.
BASE_MEMORY_BYTES: Final = 512 << 20
MEMORY_PER_BYTE: Final = 12
BASE_CPU_S: Final = 10
CPU_S_PER_MIB: Final = 2
REPLAY_CPU_S_PER_MIB: Final = 20  # ten times what small recorded inputs take
WALL_PER_CPU: Final = 4  # on a busy machine
MAX_SHARE_OF_MEMORY: Final = 0.75
# How much larger the content of a compressed file usually is.
_PACKED: Final = {b"\x1f\x8b": 10, b"PAR1": 20}


def plan_limits(paths: Sequence[Path], more_bytes: int) -> ChildLimits:
    """Return the limits for these files and folders, and `more_bytes` that come with the request.

    Only the first bytes of each file are read.
    """
    return limits_for(sum(_content_bytes(find_files(paths, DEFAULT_LIMITS.files))) + more_bytes)


def plan_replay(folder: Path) -> ChildLimits:
    """Return the limits for the recorded inputs in a folder."""
    files = ((path, False) for path in list_files(folder))
    return limits_for(sum(_content_bytes(files)), REPLAY_CPU_S_PER_MIB)


def limits_for(content_bytes: int, cpu_s_per_mib: int = CPU_S_PER_MIB) -> ChildLimits:
    """Return the limits for this much content."""
    whole = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    memory = BASE_MEMORY_BYTES + MEMORY_PER_BYTE * content_bytes
    cpu_s = BASE_CPU_S + cpu_s_per_mib * -(-content_bytes >> 20)
    return ChildLimits(
        min(memory, int(MAX_SHARE_OF_MEMORY * whole)), cpu_s, float(WALL_PER_CPU * cpu_s)
    )


def _content_bytes(files: Iterable[tuple[Path, bool]]) -> Iterable[int]:
    for path, _ in files:
        try:
            with regular_stream(path) as file:
                size = min(os.fstat(file.fileno()).st_size, DEFAULT_LIMITS.file_bytes)
                head = file.read(4)
        except (ForeignFile, OSError):
            continue  # whoever reads it says why it cannot be read
        yield size * next((n for magic, n in _PACKED.items() if head.startswith(magic)), 1)
