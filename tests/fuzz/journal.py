"""A journal with any damage: what is read is what was written, in order, or the damage is named."""

from functools import cache
from pathlib import Path

from tests.support.fuzzing import folder, patched

from ingero.errors import StoreDamaged
from ingero.storage.journal.frames import Frame
from ingero.storage.journal.inspect import inspect_journal, recoverable_frames
from ingero.storage.journal.reader import JournalReader
from ingero.storage.journal.writer import JournalWriter

SEGMENT = 512
GROUPS = ([b"one"], [b"two", b"three"], [b"four" * 40], [b"five" * 40], [b"six"], [b"seven" * 30])


@cache
def _sound() -> tuple[tuple[str, bytes], ...]:
    where = folder() / "sound-journal"
    where.mkdir()
    writer = JournalWriter(where, 0, SEGMENT)
    for group in GROUPS:
        writer.append([(1, body) for body in group], 5)
    writer.close()
    return tuple((path.name, path.read_bytes()) for path in sorted(where.iterdir()))


def _bodies() -> list[bytes]:
    return [body for group in GROUPS for body in group]


def fuzz(data: bytes) -> None:
    """The first byte says which segment is missing, and where the last one is cut."""
    if not data:
        return
    names, contents = zip(*_sound(), strict=True)
    whole = patched(b"".join(contents), data[1:])
    where = folder() / "journal"
    where.mkdir(exist_ok=True)
    for old in where.iterdir():
        old.unlink()
    at = 0
    for number, (name, content) in enumerate(zip(names, contents, strict=True)):
        if data[0] & 7 != number + 1:
            (where / name).write_bytes(whole[at : at + len(content)])
        at += len(content)
    if data[0] & 8:
        last = max(where.iterdir())
        last.write_bytes(last.read_bytes()[: 16 * (data[0] >> 4)])
    _check(where)


def _check(where: Path) -> None:
    recovered = list(recoverable_frames(where, 0))
    _check_frames(recovered)
    assert [frame.seq for frame in recovered] == sorted({frame.seq for frame in recovered})
    try:
        found = inspect_journal(where, 0)
    except StoreDamaged:
        return
    assert 0 <= found.frames <= found.last_seq <= len(_bodies())
    reader = JournalReader(where, 0)
    try:
        frames = reader.read(found.last_seq, 1 << 20)
    except StoreDamaged:
        assert found.problems
        return
    finally:
        reader.close()
    _check_frames(frames)
    assert [frame.seq for frame in frames] == list(range(1, found.last_seq + 1))
    assert found.problems or found.frames == found.last_seq


def _check_frames(frames: list[Frame]) -> None:
    """Each request is one that was written, at its own number."""
    for frame in frames:
        assert frame.body == _bodies()[frame.seq - 1]
