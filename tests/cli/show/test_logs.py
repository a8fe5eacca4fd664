"""Log lines: one event, its fields, nothing that could forge a second line."""

import logging

from ingero.cli.show.logs import FieldFormatter


def line(message: str, **fields: object) -> str:
    record = logging.makeLogRecord(
        {"msg": message, "levelname": "INFO", "created": 0.0, "msecs": 5.0, **fields}
    )
    return FieldFormatter().format(record)


def test_fields_follow_the_event() -> None:
    found = line("straggler_raised", score=0.58, mode="fleet", rank=None)
    assert found == "1970-01-01T00:00:00.005Z INFO straggler_raised score=0.58 mode=fleet rank=-"


def test_values_cannot_forge_a_line_or_a_field() -> None:
    assert line("x", node="a\nERROR y", why="a b=c").splitlines() == [
        '1970-01-01T00:00:00.005Z INFO x node="a\\nERROR y" why="a b=c"'
    ]
