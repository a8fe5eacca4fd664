"""Rows of `ingero top` as texts."""

import msgspec
import pytest
from tests.support.top_messages import ranks, snapshot

from ingero.cli.top.rows import rank_rows
from ingero.cli.top.state import TopState


@pytest.mark.parametrize(
    ("excess", "text"), [(0.341, "+34.1%"), (-0.0004, "+0.0%"), (-0.002, "-0.2%"), (None, "")]
)
def test_what_is_next_to_nothing_has_no_sign_of_less(excess: float | None, text: str) -> None:
    state, found = TopState(), ranks()
    one = msgspec.structs.replace(found.ranks[0], excess=excess)
    state.ranks = msgspec.structs.replace(found, ranks=[one])
    columns, (row,) = rank_rows(state, snapshot(), "llama-70b")
    assert row.cells[[column.title for column in columns].index("above")] == text
