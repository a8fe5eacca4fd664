"""`echo-stress --verify`: what was acknowledged is counted in the store."""

import asyncio
import json

import pytest
from tests.support.scripted_fleet import Answer, scripted_fleet

from ingero.cli.commands.services.echo_stress import stress
from ingero.echo import stress as sending


@pytest.mark.parametrize(("found", "lost", "status"), [(5, 0, 0), (3, 2, 1)])
async def test_f126_events_that_were_acknowledged_and_are_not_found_are_lost(
    found: int,
    lost: int,
    status: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sending, "_TIMEOUT_S", 0.0)  # nothing more will be found
    counted = json.dumps({"data": {"rows": [[found]]}}).encode()
    async with scripted_fleet() as echo:
        echo.answer = lambda _: Answer(headers={"Content-Type": "application/json"}, body=counted)
        command = ["--endpoint", echo.url, "--verify", echo.url, "--events", "5", "--json"]
        assert await asyncio.to_thread(stress.main, command, standalone_mode=False) == status
        run = json.loads(capsys.readouterr().out)
        assert (run["acknowledged"], run["found"], run["lost"]) == (5, found, lost)
        asked, question = echo.requests[-1]
        assert asked.path == "/api/v2/sql"
        assert run["run"] in json.loads(question)["sql"]
