"""Screenshots of Fleet's page for the documentation: a simulated job with a slow rank.

`make pictures` writes docs/pictures/page-*.png.
"""

import sys
from pathlib import Path

from tests.support.browser import chromium, chromium_path, tab
from tests.support.page_fleet import CLUSTER, JOB, PageFleet

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
WIDE, NARROW = {"width": 1280, "height": 760}, {"width": 390, "height": 780}
SECONDS = 4  # of life on each screen before it is taken


def main() -> None:
    """Take every screen wide and light, and the first one narrow and dark, too."""
    if chromium_path() is None:
        sys.exit("Chromium is not installed")
    with PageFleet(nodes=2000, ranks=64, gpus_per_node=8) as fleet, chromium() as browser:
        fleet.silent |= set(fleet.names[77:81])
        fleet.slow = 11
        fleet.call(fleet.until_named)
        episode = fleet.call(lambda: fleet.fleet.verdicts.open_verdicts()[0][1].episode)
        screens = {
            "now": "/", "job": f"/job/{JOB}", "node": f"/node/{fleet.names[1]}",
            "episode": f"/episode/{episode}", "agents": "/agents",
        }  # fmt: skip
        shots = [(name, path, WIDE, "light", "") for name, path in screens.items()]
        shots += [("now", "/", NARROW, "dark", "-narrow"), ("now", "/", WIDE, "dark", "-dark")]
        for name, path, size, scheme, ending in shots:
            with tab(browser, viewport=size, color_scheme=scheme) as (page, said):
                page.goto(f"{fleet.url}{path}?cluster_id={CLUSTER}")
                page.locator("h1:has-text('slow'), h1:has-text('agents')").wait_for()
                page.wait_for_timeout(1000 * SECONDS)
                target = FOLDER / f"page-{name}{ending}.png"
                page.screenshot(path=target)
                print(f"{target.name}: {target.stat().st_size / 1e3:.0f} KB {said or ''}")


if __name__ == "__main__":
    main()
