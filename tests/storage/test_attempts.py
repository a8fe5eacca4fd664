"""Requests that end the process: recognised after repeated starts, never after single ones."""

from pathlib import Path

from ingero.storage.journal.attempts import Attempts


def test_a_request_is_set_aside_after_it_ended_the_process_twice_alone(tmp_path: Path) -> None:
    path = tmp_path / "attempts"
    assert [Attempts(path, 7).is_careful for _ in range(3)] == [False, False, True]
    fourth = Attempts(path, 7)
    assert fourth.begin(8), "another request is loaded"
    assert fourth.begin(9), "and this one ends the process"
    fifth = Attempts(path, 8)
    assert fifth.is_careful
    assert fifth.begin(9)
    sixth = Attempts(path, 8)
    assert not sixth.begin(9)
    assert sixth.begin(10)


def test_progress_and_a_clean_stop_forget_the_starts(tmp_path: Path) -> None:
    path = tmp_path / "attempts"
    for _ in range(2):
        Attempts(path, 7)
    assert not Attempts(path, 8).is_careful
    Attempts(path, 8).end()
    assert not path.exists()
    assert not any(Attempts(path, 8).is_careful for _ in range(2))


def test_a_damaged_file_counts_as_none(tmp_path: Path) -> None:
    path = tmp_path / "attempts"
    for content in (b"", b"[]", b'{"starts": 9}', b"\xff"):
        path.write_bytes(content)
        assert not Attempts(path, 3).is_careful
