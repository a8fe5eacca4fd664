"""The child that reads recordings of strangers, and answers what a command asked about them."""

import contextlib
import signal
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import BinaryIO

import msgspec

from ingero.children.lifetime import end_with_parent
from ingero.children.limits import ChildLimits, limit_this_process
from ingero.children.reader import write_frame
from ingero.cli.recordings.budget import plan_limits, plan_replay
from ingero.cli.recordings.load import load_recordings
from ingero.cli.recordings.request import Done, Failure, Frame, Plan, Request
from ingero.cli.recordings.wire import Answered, encode, encode_records
from ingero.errors import IngeroError, MalformedInput
from ingero.importers.ask import blame_inputs
from ingero.importers.detect import Inputs


def main() -> None:
    """Read the request from standard input, and write frames to standard output."""
    end_with_parent(signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    output = sys.stdout.buffer
    try:
        request = msgspec.msgpack.decode(_line(sys.stdin.buffer), type=Request)
        dumps = [(rank, sys.stdin.buffer.read(size)) for rank, size in request.dumps]
        paths = [Path(path) for path in request.paths]
        if request.wants_replay:
            _answer_replay(output, request, *paths)
            return
        limits = plan_limits(paths, sum(size for _, size in request.dumps))
        _keep_within(output, limits)
        _answer(output, request, paths, dumps)
    except IngeroError as error:
        _send(output, Frame.FAILURE, Failure(type(error).__name__, str(error)))
    except MemoryError:
        _fail(output, "more memory is needed than for a recording of this size")
    except RecursionError:
        _fail(output, "it is nested too deeply")
    except Exception as error:  # noqa: BLE001 - whatever a file causes, the answer is a sentence
        _fail(output, f"{type(error).__name__}: {str(error)[:200]}")


def _keep_within(output: BinaryIO, limits: ChildLimits) -> None:
    _send(output, Frame.PLAN, Plan(limits.memory_bytes, limits.cpu_s, limits.wall_s))
    limit_this_process(limits)


def _answer_replay(output: BinaryIO, request: Request, what: Path, default: Path) -> None:
    from ingero.cli.recordings.replay import answer_replay, folder_of

    folder = folder_of(what, default)
    _keep_within(output, plan_replay(folder))
    write_frame(output, Frame.FILE, str(folder).encode(errors="surrogateescape"))
    _send(output, Frame.ANSWER, answer_replay(what, folder, request.wants_peers))


def _line(source: BinaryIO) -> bytes:
    return source.read(int(source.readline()))


def _answer(
    output: BinaryIO, request: Request, paths: list[Path], dumps: list[tuple[int, bytes]]
) -> None:
    def on_file(path: Path) -> None:
        write_frame(output, Frame.FILE, str(path).encode(errors="surrogateescape"))

    inputs = load_recordings(paths, on_file) if paths else Inputs()
    for rank, data in dumps:
        path = Path(f"_dump_{rank}")
        on_file(path)
        inputs.add_dump(path, data)
    inputs.problems += request.problems
    write_frame(output, Frame.FILE, b"")
    if request.wants_records:
        for records in inputs.records.values():
            for batch in encode_records(records):
                write_frame(output, Frame.RECORDS, batch)
        _send(output, Frame.DONE, Done(inputs.problems))
        return
    answer = blame_inputs(inputs)
    answer = answer if request.wants_heat else replace(answer, heat=None)
    _send(output, Frame.ANSWER, Answered(answer, dict(Counter(kind for _, kind in inputs.used))))


def _fail(output: BinaryIO, why: str) -> None:
    _send(output, Frame.FAILURE, Failure(MalformedInput.__name__, f"cannot be answered: {why}"))


def _send(output: BinaryIO, kind: Frame, value: object) -> None:
    with contextlib.suppress(BrokenPipeError):  # the command was interrupted
        write_frame(output, kind, encode(value))


if __name__ == "__main__":
    main()
