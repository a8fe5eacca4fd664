"""A job that takes the place of this process, and one that cannot be started."""

import signal

import pytest

from ingero.children.job import IGNORED_BY_PYTHON, become


def test_a_program_that_cannot_be_started_leaves_signals_as_they_were() -> None:
    """Else the next write to a closed connection ends this process without a word."""
    before = {number: signal.getsignal(number) for number in IGNORED_BY_PYTHON}
    with pytest.raises(OSError, match="No such file"):
        become(("/no/such/program",), {})
    assert {number: signal.getsignal(number) for number in IGNORED_BY_PYTHON} == before
