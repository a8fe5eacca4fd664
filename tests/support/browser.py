"""A real Chromium for tests of pages; tests are skipped with a sentence where there is none."""

import contextlib
import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Page, sync_playwright

WAIT_MS = 20_000


def chromium_path() -> str | None:
    """Return Debian's Chromium, or the one that is on PATH."""
    return shutil.which("chromium") or shutil.which("chromium-browser")


@contextlib.contextmanager
def chromium() -> Iterator[Browser]:
    """Start a browser; skip the test where there is none."""
    path = chromium_path()
    if path is None:
        pytest.skip("Chromium is not installed; `make test` installs it from Debian where it can")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=["--no-sandbox"])
        try:
            yield browser
        finally:
            browser.close()


@contextlib.contextmanager
def tab(browser: Browser, **settings: object) -> Iterator[tuple[Page, list[str]]]:
    """Open a page of its own; the list gets every console message and error of the page."""
    context = browser.new_context(locale="en-GB", **settings)  # type: ignore[arg-type]  # as given
    context.set_default_timeout(WAIT_MS)
    page, said = context.new_page(), list[str]()

    def note(message: ConsoleMessage) -> None:
        said.append(f"{message.type}: {message.text}")

    page.on("console", note)
    page.on("pageerror", lambda error: said.append(str(error)))
    try:
        yield page, said
    finally:
        context.close()
