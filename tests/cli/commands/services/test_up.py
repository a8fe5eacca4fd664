"""`ingero up`: what it does beside watching its two services (they run in tests/e2e)."""

from pathlib import Path

from ingero.cli.commands.services.up import bound_log


def test_a_log_stays_bounded_and_its_writer_goes_on(tmp_path: Path) -> None:
    log = tmp_path / "echo.log"
    with log.open("ab", buffering=0) as writer:
        writer.write(b"a" * 100)
        bound_log(log, 100)
        assert log.stat().st_size == 100
        writer.write(b"b")
        bound_log(log, 100)
        writer.write(b"c")
    assert log.read_bytes() == b"c"
    assert (tmp_path / "echo.log.1").read_bytes() == b"a" * 100 + b"b"
