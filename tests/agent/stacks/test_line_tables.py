"""Line tables of CPython agree with what the interpreter itself says."""

import sys

import pytest

from ingero.agent.stacks.line_tables import line_of, line_of_310


def functions_with_lines():
    def straight(a):
        b = a + 1

        return [
            b
            for c in range(3)
            if c
        ]  # fmt: skip

    def jumps(a):
        try:
            for item in a:
                if item:
                    continue
                raise ValueError(
                    item
                )  # fmt: skip
        finally:
            a = None
        return a

    return [straight.__code__, jumps.__code__, functions_with_lines.__code__, line_of.__code__]


@pytest.mark.skipif(
    sys.version_info < (3, 11), reason="the running interpreter has the older line table"
)
def test_line_table_agrees_with_the_interpreter() -> None:
    for code in functions_with_lines():
        for start, end, line in code.co_lines():
            for unit in range(start // 2, end // 2):
                assert line_of(code.co_linetable, code.co_firstlineno, unit) == line


def test_line_table_of_310() -> None:
    """Two instructions on line 11, one without a line, one a line back."""
    table = bytes([4, 1, 2, 0x80, 2, 0xFF])
    assert [line_of_310(table, 10, offset) for offset in (0, 2, 4, 6, 8)] == [
        11,
        11,
        None,
        10,
        None,
    ]
