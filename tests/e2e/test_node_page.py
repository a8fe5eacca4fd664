"""The page of a node in a browser: with a trace, without one, and with a hostile trace."""

import asyncio
import shutil
import sqlite3
import subprocess
from pathlib import Path

import pytest
from tests.support.fanout_nodes import node_listener
from tests.support.waiting import PATIENCE_S

from ingero.sim.samples import write_samples

BROWSER = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(BROWSER is None, reason="needs Chromium (`apt install chromium`)"),
]


async def page(db: Path, folder: Path) -> str:
    """What the browser holds after the page's script has run."""
    async with node_listener(db) as listener:
        command = [
            str(BROWSER), "--headless", "--no-sandbox", "--disable-gpu",
            "--virtual-time-budget=3000", "--dump-dom",
            f"--user-data-dir={folder}", f"http://{listener.address}/",
        ]  # fmt: skip
        for _ in range(3):  # a browser that dies while it starts shows nothing at all
            done = await asyncio.to_thread(
                subprocess.run,
                command,
                capture_output=True,
                text=True,
                timeout=2 * PATIENCE_S,
                check=False,
            )
            if done.stdout:
                break
    return done.stdout


async def test_page_shows_the_trace_and_runs_nothing_of_it(tmp_path: Path) -> None:
    db = write_samples(tmp_path / "samples")[0]
    evil = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"
    with sqlite3.connect(db) as connection:
        connection.execute(
            "UPDATE causal_chains SET summary = ?, severity = 'HIGH' WHERE rowid = 1", (evil,)
        )
    connection.close()
    shown = await page(db, tmp_path / "profile")
    assert "<title>n – Ingero</title>" in shown
    assert "&lt;img src=x onerror=" in shown
    assert "<b>200</b>" in shown
    assert "cuLaunchKernel" in shown
    assert '<p id="nothing" hidden="">' in shown


async def test_page_of_a_recording_that_ended_shows_when(tmp_path: Path) -> None:
    db = write_samples(tmp_path / "samples")[0]
    with sqlite3.connect(db) as connection:
        connection.execute("INSERT INTO losses VALUES (1, 'calls', 0, 1700000000000000000)")
    connection.close()
    assert "no recorder is running: recorded until " in await page(db, tmp_path / "profile")


async def test_page_without_a_trace_shows_what_to_run(tmp_path: Path) -> None:
    shown = await page(tmp_path / "none.db", tmp_path / "profile")
    assert (
        '<p id="nothing">Nothing was recorded here yet: run <code>sudo ingero trace</code>' in shown
    )
    assert '<div id="trace" hidden="">' in shown
