"""Asks about recordings of strangers: a child process with limits reads them, this one prints.

Only this module starts the child. This process never interprets the content of a file.
"""

import os
import signal
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

import msgspec

from ingero import errors
from ingero.children.process import module_command
from ingero.children.reader import ChildEnded, ReadingChild
from ingero.cli.recordings.request import Done, Failure, Frame, Plan, Request
from ingero.contract.collective import CollectiveRecord
from ingero.errors import IngeroError, MalformedInput, TooLarge

if TYPE_CHECKING:
    from ingero.cli.recordings.replay import ReplayAnswer
    from ingero.cli.recordings.wire import Answered

# One thread and one arena each: address space is limited, and the work is small.
_ENVIRONMENT: Final = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "MALLOC_ARENA_MAX": "1",
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}
_MAX_RECORDS: Final = 50_000_000
T = TypeVar("T")


def ask_blame(
    paths: Sequence[Path],
    *,
    wants_heat: bool = False,
    dumps: Sequence[tuple[int, bytes]] = (),
    problems: Sequence[str] = (),
) -> "Answered":
    """Return the answer about files and folders, and about dumps of running processes by rank."""
    request = Request(
        [str(path) for path in paths],
        wants_heat=wants_heat,
        dumps=[(rank, len(data)) for rank, data in dumps],
        problems=list(problems),
    )
    for kind, content in _frames(request, [data for _, data in dumps]):
        if kind == Frame.ANSWER:
            from ingero.cli.recordings.wire import Answered, decode

            return decode(content, Answered)
    raise MalformedInput(f"{_where(request)}: the reader gave no answer")


def ask_records(paths: Sequence[Path]) -> tuple[list[CollectiveRecord], list[str]]:
    """Return the recorded collectives in files and folders, and the problems found in them."""
    from ingero.cli.recordings.wire import decode_records

    request = Request([str(path) for path in paths], wants_records=True)
    records: list[CollectiveRecord] = []
    for kind, content in _frames(request, []):
        if kind == Frame.RECORDS:
            records += decode_records(content)
            if len(records) > _MAX_RECORDS:
                raise TooLarge(f"{_where(request)}: more than {_MAX_RECORDS} collectives")
        elif kind == Frame.DONE:
            return records, _decoded(content, Done).problems
    raise MalformedInput(f"{_where(request)}: the reader gave no answer")


def ask_replay(what: str, folder: Path, *, wants_peers: bool) -> "ReplayAnswer":
    """Return what a replay of recorded inputs gives; `what` is their folder or an episode."""
    request = Request([what, str(folder)], wants_replay=True, wants_peers=wants_peers)
    for kind, content in _frames(request, []):
        if kind == Frame.ANSWER:
            from ingero.cli.recordings.replay import ReplayAnswer
            from ingero.cli.recordings.wire import decode

            return decode(content, ReplayAnswer)
    raise MalformedInput(f"{_where(request)}: the reader gave no answer")


def _frames(request: Request, dumps: Sequence[bytes]) -> Iterator[tuple[int, bytes]]:
    """Yield what the child found; its failures are raised as errors that name the file."""
    head = msgspec.msgpack.encode(request)
    command = module_command("ingero.cli.recordings.child")
    with ReadingChild(command, {**os.environ, **_ENVIRONMENT}) as child:
        child.send(b"%d\n" % len(head), head, *dumps)
        import ingero.cli.recordings.wire  # noqa: F401 - numpy loads while the child reads

        plan, where = None, _where(request)
        try:
            for kind, content in child.frames():
                if kind == Frame.PLAN and plan is None:
                    plan = _decoded(content, Plan)
                    child.allow(plan.wall_s)
                elif kind == Frame.FILE:
                    where = content.decode(errors="surrogateescape") or _where(request)
                elif kind == Frame.FAILURE:
                    raise _error(_decoded(content, Failure), where)
                else:
                    yield kind, content
        except ChildEnded as end:
            raise MalformedInput(f"{where}: {_reason(end, plan)}") from None


def _where(request: Request) -> str:
    return ", ".join(request.paths[:3]) or "the dumps"


def _decoded(content: bytes, kind: type[T]) -> T:
    try:
        return msgspec.msgpack.decode(content, type=kind)
    except msgspec.DecodeError as error:
        raise MalformedInput(f"the reader sent something else than an answer: {error}") from error


def _error(failure: Failure, where: str) -> IngeroError:
    """Return the error that the child names, if it is one of ours."""
    kind = getattr(errors, failure.kind, MalformedInput)
    if failure.message.startswith("cannot be answered"):
        return MalformedInput(f"{where}: {failure.message}")
    is_ours = isinstance(kind, type) and issubclass(kind, IngeroError)
    return kind(failure.message) if is_ours else MalformedInput(failure.message)


def _reason(end: ChildEnded, plan: Plan | None) -> str:
    if plan is None:
        return "the process that reads it did not start"
    if end.timed_out:
        return f"reading took longer than {plan.wall_s:.0f} s"
    if end.signal == signal.SIGXCPU:
        return f"reading took more than {plan.cpu_s} s of CPU time"
    if end.signal == signal.SIGKILL:
        return "the process that reads it was killed, perhaps for lack of memory"
    name = signal.Signals(end.signal).name if end.signal else "without an answer"
    return f"the process that reads it ended ({name}): the file is damaged or hostile"
