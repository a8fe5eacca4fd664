"""A Fleet whose seconds pass when the test says so."""

import pytest

from ingero.fleet import app


@pytest.fixture
def standing_clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """No tick of its own comes between two pushes, however slowly they follow each other."""
    monkeypatch.setattr(app, "TICK_S", 3600.0)
