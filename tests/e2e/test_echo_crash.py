"""kill -9 under load, the short version; `make crash-echo` kills at least twenty times."""

from pathlib import Path

import pytest
from tests.e2e.echo_crash import BATCH, crash

pytestmark = pytest.mark.e2e


async def test_acknowledged_is_found_after_kills_of_parent_and_store(tmp_path: Path) -> None:
    outcome = await crash(tmp_path, kills=3, seed=4)
    assert (outcome.lost, outcome.doubled) == (0, 0)
    assert outcome.quarantined > 0
    assert outcome.events + outcome.quarantined * BATCH == outcome.acknowledged
    assert outcome.retries > 0, "a kill must have interrupted somebody"
