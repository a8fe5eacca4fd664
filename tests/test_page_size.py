"""F025: pages have 4 KiB on most machines and 64 KiB on some; nothing assumes either."""

import mmap
import re
from pathlib import Path

import pytest

from ingero.agent.engines.find import may_use_cuda
from ingero.storage.sqlite_guard import _resident_bytes

SOURCE = Path(__file__).parent.parent / "src" / "ingero"
LARGE = 65536


def test_pages_of_a_process_are_counted_in_their_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mmap, "PAGESIZE", 4096)
    small = _resident_bytes()
    assert [may_use_cuda(pages) for pages in (LARGE, 1 << 20)] == [False, True]
    monkeypatch.setattr(mmap, "PAGESIZE", LARGE)
    assert 8 * small < _resident_bytes() < 32 * small
    assert [may_use_cuda(pages) for pages in (LARGE - 1, LARGE)] == [False, True]


def test_whoever_reads_pages_from_proc_asks_for_their_size() -> None:
    readers = [path for path in SOURCE.rglob("*.py") if "/statm" in path.read_text()]
    assert len(readers) >= 4
    for path in readers:
        assert not re.search(r"(\*|//) *4096", path.read_text()), path
