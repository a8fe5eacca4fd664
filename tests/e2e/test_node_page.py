"""The page of a node in a browser: with a trace or none, a hostile one, and with a token."""

import asyncio
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect
from tests.support.browser import chromium, tab
from tests.support.fanout_nodes import node, node_listener

from ingero.sim.samples import write_samples

pytestmark = pytest.mark.e2e
TOKEN = "token-of-the-node-0123456789"
EVIL = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>"


def look(address: str, check: Callable[[Page], None], **settings: object) -> list[str]:
    """Open the page of a node, check it, and return what the browser's console has said."""
    with chromium() as browser, tab(browser, **settings) as (page, said):
        page.goto(f"http://{address}/")
        check(page)
        return said


def change(db: Path, sql: str, *values: object) -> None:
    with sqlite3.connect(db) as connection:
        connection.execute(sql, values)
    connection.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_page_shows_the_trace_and_runs_nothing_of_it(tmp_path: Path, scheme: str) -> None:
    """The worst chain is the first sentence, as on Fleet's page; axe finds nothing."""
    db = write_samples(tmp_path / "samples")[0]
    update = "UPDATE causal_chains SET summary = ?, severity = 'CRITICAL' WHERE rowid = 1"
    change(db, update, EVIL)

    def check(page: Page) -> None:
        expect(page.locator("h1")).to_have_text(f"n: {EVIL}")
        expect(page).to_have_title("n – Ingero")
        expect(page.locator(".facts div").first).to_have_text("events200")
        expect(page.locator("tbody th").first).to_contain_text("cu")
        assert page.locator("#app img").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        found = Axe().run(page).response["violations"]
        assert [each["id"] for each in found] == []

    async with node_listener(db) as listener:
        size = {"width": 390, "height": 800}
        said = await asyncio.to_thread(
            look, listener.address, check, viewport=size, color_scheme=scheme
        )
    assert said == []


async def test_page_of_a_recording_that_ended_shows_when(tmp_path: Path) -> None:
    db = write_samples(tmp_path / "samples")[0]
    change(db, "INSERT INTO losses VALUES (1, 'calls', 0, 1700000000000000000)")

    def check(page: Page) -> None:
        expect(page.get_by_text("no recorder is running: recorded until 14 Nov")).to_be_visible()

    async with node_listener(db) as listener:
        await asyncio.to_thread(look, listener.address, check, timezone_id="UTC")


async def test_a_recorder_that_has_seen_nothing_is_not_called_calm(tmp_path: Path) -> None:
    db = write_samples(tmp_path / "samples")[0]
    for table in ("causal_chains", "events", "event_aggregates", "op_durations"):
        change(db, f"DELETE FROM {table}")

    def check(page: Page) -> None:
        expect(page.locator("h1")).to_have_text(
            "The recorder on n has seen no call of a traced process yet."
        )

    async with node_listener(db) as listener:
        await asyncio.to_thread(look, listener.address, check)


async def test_page_without_a_trace_shows_what_to_run(tmp_path: Path) -> None:
    def check(page: Page) -> None:
        expect(page.locator("h1")).to_have_text("Nothing was recorded on n yet.")
        expect(page.get_by_text("Run sudo ingero trace on this node.")).to_be_visible()
        expect(page.locator("table")).to_have_count(0)

    async with node_listener(tmp_path / "none.db") as listener:
        assert await asyncio.to_thread(look, listener.address, check) == []


async def test_page_of_a_node_asks_for_its_token(tmp_path: Path) -> None:
    db = write_samples(tmp_path / "samples")[0]

    def check(page: Page) -> None:
        field = page.get_by_label("token")
        field.fill("a-wrong-token-0123456789")
        page.keyboard.press("Enter")
        expect(field).to_be_visible()
        field.fill(TOKEN)
        page.keyboard.press("Enter")
        expect(page.get_by_role("heading", name="Operations")).to_be_visible()
        assert TOKEN not in page.url

    async with node(db, "n", token=TOKEN) as address:
        await asyncio.to_thread(look, address, check)


async def test_page_says_when_its_node_is_away(tmp_path: Path) -> None:
    db = write_samples(tmp_path / "samples")[0]

    async with node_listener(db) as listener:
        loop, address = asyncio.get_running_loop(), listener.address

        def check(page: Page) -> None:
            expect(page.get_by_role("heading", name="Operations")).to_be_visible()
            asyncio.run_coroutine_threadsafe(listener.stop(), loop).result(20)
            banner = page.locator(".banner")
            # the page asks every few seconds, and its request may have to time out first
            expect(banner).to_contain_text("the node does not answer", timeout=30_000)
            expect(page.get_by_role("heading", name="Operations")).to_be_visible()

        await asyncio.to_thread(look, address, check)
