"""Screenshots of Fleet's page for the documentation: the demo's job with its slow rank.

`make pictures` writes docs/pictures/page-*.png. The job, its eight nodes and what is said about
them are those of `ingero demo`; the other nodes of the map push a score each.
"""

import math
import sys
import threading
import time
import urllib.request
from pathlib import Path

from playwright.sync_api import expect
from tests.support.browser import chromium, chromium_path, tab
from tests.support.pushes import PB, health
from tests.support.waiting import until

from ingero.cli.commands.demos.job import BEHIND_S, EXCESS, PUSH_S, RANKS_PER_NODE
from ingero.contract.otlp.codec import encode_protobuf
from ingero.contract.otlp.values import MetricsRequest
from ingero.contract.verdict import Verdict, VerdictState
from ingero.sim.cluster import CLUSTER, DemoCluster

FOLDER = Path(__file__).parents[1] / "docs" / "pictures"
WIDE, NARROW = {"width": 1280, "height": 760}, {"width": 390, "height": 780}
NODES = [f"gpu-node-{number:02d}" for number in range(1, 9)]
RANK = 19
OTHERS = 1000
PUSH_EVERY_S = 8.0
ASK_EVERY_S = 0.25
SECONDS = 5  # of life on each screen before it is taken


def main() -> None:
    """Take every screen wide and light, and the first one narrow and dark, too."""
    if chromium_path() is None:
        sys.exit("Chromium is not installed")
    with DemoCluster(NODES, PUSH_S, RANKS_PER_NODE, behind_s=BEHIND_S) as cluster:
        done = threading.Event()
        pushing = threading.Thread(target=push_others, args=(cluster, done), daemon=True)
        verdict = slow_rank(cluster)
        pushing.start()
        until(lambda: len(getattr(cluster.judged(), "nodes", ())) > OTHERS, "nodes are missing")
        try:
            take(f"http://{cluster.addresses['threshold']}", verdict)
        finally:
            done.set()
            pushing.join()


def slow_rank(cluster: DemoCluster) -> Verdict:
    """Let the demo happen until its slow rank is named."""

    def judged() -> bool:
        seen = cluster.judged()
        return seen is not None and seen.ranks.judged == len(NODES) * RANKS_PER_NODE

    def named() -> list[Verdict]:
        time.sleep(ASK_EVERY_S)  # a Fleet that only answers has no time to judge
        seen = cluster.judged()
        found = seen.verdicts if seen is not None else []
        return [v for v in found if v.rank == RANK and v.state is VerdictState.STRAGGLER]

    until(lambda: len(getattr(cluster.judged(), "nodes", ())) == len(NODES), "agents do not push")
    cluster.hurry()
    until(lambda: judged() and not cluster.is_late, "the ranks are not judged")
    cluster.slow_rank(RANK, EXCESS)
    found: list[Verdict] = []
    until(lambda: found.extend(named()) or found, "the slow rank is not named")
    return found[0]


def push_others(cluster: DemoCluster, done: threading.Event) -> None:
    """Push a score of every other node, again and again; some fall silent."""
    url, turn = f"http://{cluster.addresses['http']}/v1/metrics", 0
    while turn == 0 or not done.wait(PUSH_EVERY_S):
        numbers = [each for each in range(OTHERS) if turn == 0 or not 77 <= each < 81]
        pushes = [
            health(f"h100-{n:05d}", 0.93 + 0.06 * math.sin(12.9 * n + turn), cluster=CLUSTER)
            for n in numbers
        ]
        parts = tuple(part for push in pushes for part in push.resource_metrics)
        body = encode_protobuf(MetricsRequest(parts))
        urllib.request.urlopen(urllib.request.Request(url, body, PB), timeout=30).close()
        turn += 1


def take(url: str, verdict: Verdict) -> None:
    """Take the pictures."""
    screens = {
        "now": "/", "job": f"/job/{verdict.job}", "node": f"/node/{verdict.node}",
        "episode": f"/episode/{verdict.episode}", "agents": "/agents?filter=node",
    }  # fmt: skip
    shots = [(name, path, WIDE, "light", "") for name, path in screens.items()]
    shots += [("now", "/", NARROW, "dark", "-narrow"), ("now", "/", WIDE, "dark", "-dark")]
    with chromium() as browser:
        for name, path, size, scheme, ending in shots:
            with tab(browser, viewport=size, color_scheme=scheme) as (page, said):
                page.goto(f"{url}{path}{'&' if '?' in path else '?'}cluster_id={CLUSTER}")
                page.locator("h1:has-text('slow'), h1:has-text('agents')").wait_for()
                page.wait_for_timeout(1000 * SECONDS)
                expect(page.locator(".banner")).to_have_count(0)
                target = FOLDER / f"page-{name}{ending}.png"
                page.screenshot(path=target)
                print(f"{target.name}: {target.stat().st_size / 1e3:.0f} KB {said or ''}")


if __name__ == "__main__":
    main()
