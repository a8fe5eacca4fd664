"""Where each process of an engine waits: its state, what it waits for, and its Python frames.

Nothing is stopped or signalled: everything is read from /proc and from memory.
"""

from typing import Final

from ingero.agent.causes.threads import comm_of, read, see_thread, thread_ids
from ingero.agent.engines.find import arguments_of
from ingero.agent.engines.names import read_command_line
from ingero.agent.processes.maps import read_maps
from ingero.agent.stacks.interpreters import find_python
from ingero.contract.measurements.engines import MAX_TEXT, printable
from ingero.core.causes.profile import Doing

MAX_PROCESSES: Final = 64  # of one engine
MAX_SHOWN: Final = 4
MAX_FRAMES: Final = 2
_STATES: Final = {b"T": "stopped by a signal", b"t": "stopped by a debugger", b"Z": "dead"}
_LIBRARIES: Final = ("/site-packages/", "/dist-packages/")


def worker_processes(pid: int) -> list[int]:
    """Return the processes below a server, nearest first; the server itself where it has none."""
    found: list[int] = []
    level = [pid]
    while level and len(found) < MAX_PROCESSES:
        level = [child for parent in level for child in all_children_of(parent)]
        found += level
    return found[:MAX_PROCESSES] or [pid]


def all_children_of(pid: int) -> list[int]:
    """Return the children of every thread of a process."""
    found: list[int] = []
    for tid in thread_ids(pid):
        found += map(int, read(f"/proc/{pid}/task/{tid}/children").split())
    return found


def count_gpus(pid: int) -> int:
    """Return how many processes of an engine use a GPU: one each, as engines start them."""
    below = [each for each in worker_processes(pid) if "/libcuda.so" in read_maps(each)]
    leaves = [each for each in below if not set(worker_processes(each)) & set(below) - {each}]
    return max(len(leaves), 1)


def describe_waits(pid: int) -> str:
    """Return where the workers of an engine are, those that are stopped or dead first."""
    seen = [(state_of(each), each) for each in _workers(pid)]
    seen.sort(key=lambda each: each[0] not in _STATES)
    return "; ".join(_describe(each, state) for state, each in seen[:MAX_SHOWN] if state)[:MAX_TEXT]


def state_of(pid: int) -> bytes:
    """Return the letter that the kernel gives the state of a process; empty when it is gone."""
    fields = read(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return fields[0] if fields else b""


def _workers(pid: int) -> list[int]:
    """Return the processes that engines name as theirs; all of them where none is named."""
    below = worker_processes(pid)
    named = [each for each in below if read_command_line(arguments_of(each)).kind is not None]
    return named or below


def _describe(pid: int, state: bytes) -> str:
    """Return one process: its name, and what it does or waits for."""
    name = _name(pid)
    frames = _frames(pid)
    where = f" in {frames}" if frames else ""
    if state in _STATES:
        return f"{name} (pid {pid}) is {_STATES[state]}{where}"
    seen = see_thread(pid, pid)
    doing = seen.doing if seen else Doing.WAITS
    channel = "" if doing is Doing.RUNS else _wait_channel(pid)
    return f"{name} (pid {pid}) {doing}{channel}{where}"


def _name(pid: int) -> str:
    """Return the title that an engine gave a process, else its short name."""
    title = (arguments_of(pid) or [""])[0]
    is_title = "::" in title and "/" not in title
    return printable(title if is_title else comm_of(pid), 40) or "a process"


def _wait_channel(pid: int) -> str:
    """Return the function of the kernel in which a process sleeps, where that may be read."""
    name = read(f"/proc/{pid}/wchan").decode(errors="replace")
    return f" ({name})" if name.isidentifier() and name != "0" else ""


def _frames(pid: int) -> str:
    """Return the innermost Python frames of the main thread that are not the standard library's."""
    python = find_python(pid)
    frames = [] if python is None else python.stack(pid)
    own = [each for each in frames if any(part in each.file for part in _LIBRARIES)] or frames
    return " < ".join(
        printable(f"{each.function} {each.file.rsplit('/', 1)[-1]}:{each.line}", 80)
        for each in own[:MAX_FRAMES]
    )
