"""Real inputs that live beside the checkout and are never committed."""

from pathlib import Path

import pytest

SHARED = Path(__file__).parents[3] / "shared"


def shared(relative: str) -> Path:
    """The path of a shared input; skips the test where the folder is absent."""
    path = SHARED / relative
    if not path.exists():
        pytest.skip(f"needs the real inputs in ../shared/{relative}, which are not on this machine")
    return path
