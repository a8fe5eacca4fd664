"""Who a writer of a lake is: a name that stays with its journal, in a file beside it."""

import re
import uuid
from pathlib import Path
from typing import Final

from ingero.errors import StoreError
from ingero.files import replace_file

_NAME: Final = re.compile(r"[0-9a-f]{32}")
_MOVED: Final = "moved"  # the second line, where a database file was moved into the lake


def writer_identity(beside: Path) -> str:
    """Return the name of the writer whose journal lies beside `beside`; make it the first time."""
    file = _file(beside)
    if not file.exists():
        replace_file(file, f"{uuid.uuid4().hex}\n".encode())
    name, _ = _read(file)
    return name


def mark_moved(beside: Path) -> None:
    """Note that the database file `beside` is in the lake now, so that nobody goes on with it."""
    replace_file(_file(beside), f"{writer_identity(beside)}\n{_MOVED}\n".encode())


def is_in_lake(beside: Path) -> bool:
    """Return whether the rows of an Echo are in a lake, and not in the file `beside`."""
    file = _file(beside)
    return file.exists() and (not beside.exists() or _read(file)[1])


def _file(beside: Path) -> Path:
    return beside.with_name(beside.name + ".writer")


def _read(file: Path) -> tuple[str, bool]:
    try:
        name, *rest = file.read_text(encoding="ascii").splitlines() or [""]
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(f"cannot read {file}: {error}") from None
    if not _NAME.fullmatch(name):
        raise StoreError(
            f"{file} does not name a writer of a lake; restore it, or move it and the journal away"
        )
    return name, rest[:1] == [_MOVED]
