"""What Fleet's page costs: 20 open streams of 10,000 nodes, and one paint of the map.

`make bench-page` prints PASS or FAIL per requirement. Fleet runs in its own process, in which a
tenth of the nodes push every second. Its CPU time is compared without and with streams.
"""

import argparse
import asyncio
import subprocess
import sys
import time

import aiohttp
from tests.support.browser import chromium, chromium_path, tab
from tests.support.cpu_time import cpu_s
from tests.support.page_fleet import PageFleet
from tests.support.waiting import until

NODES = 10_000
STREAMS = 20
SECONDS = 20
MAX_SHARE = 0.02  # of a core, for all streams together
MAX_PAINT_MS = 10.0


def main() -> None:
    """Measure both figures, and exit with 1 where one is missed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--serve", action="store_true")
    if parser.parse_args().serve:
        return serve()
    command = [sys.executable, "-m", "bench.page", "--serve"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as it:
        assert it.stdout is not None
        url = it.stdout.readline().strip()
        try:
            results = [share_of_streams(url, it.pid), paint_time(url)]
        finally:
            it.communicate()  # end of its input
    for passed, line in results:
        print("PASS" if passed else "FAIL", line)
    return sys.exit(0 if all(passed for passed, _ in results) else 1)


def serve() -> None:
    """Run Fleet until the input ends."""
    with PageFleet(nodes=NODES) as fleet:
        print(fleet.url, flush=True)
        sys.stdin.read()


def share_of_streams(url: str, pid: int) -> tuple[bool, str]:
    """Return the CPU time that the streams add, as a share of one core."""
    time.sleep(3)  # the start is over
    before = cpu_share(pid, SECONDS)
    watched, sent = asyncio.run(watch(url, pid))
    alone = (before + cpu_share(pid, SECONDS)) / 2
    added = watched - alone
    text = f"{STREAMS} streams of {NODES} nodes cost {added:.2%} of a core (limit {MAX_SHARE:.0%})"
    return added < MAX_SHARE, f"{text}; alone {alone:.2%}, {sent / 1e3:.0f} KB/s per stream"


def cpu_share(pid: int, seconds: float) -> float:
    before_s, began_s = cpu_s(pid), time.monotonic()
    time.sleep(seconds)
    return (cpu_s(pid) - before_s) / (time.monotonic() - began_s)


async def watch(url: str, pid: int) -> tuple[float, float]:
    """Open the streams; return the CPU share of Fleet, and bytes per second and stream."""
    received = [0]

    async def read(session: aiohttp.ClientSession) -> None:
        async with session.get(f"{url}/api/v1/live") as reply:
            async for part in reply.content.iter_any():
                received[0] += len(part)

    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None)) as session:
        tasks = [asyncio.create_task(read(session)) for _ in range(STREAMS)]
        await asyncio.sleep(3)  # snapshots are sent
        before = received[0]
        share = await asyncio.to_thread(cpu_share, pid, SECONDS)
        sent = (received[0] - before) / SECONDS / STREAMS
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    return share, sent


def paint_time(url: str) -> tuple[bool, str]:
    """Return the median time of a paint of the map in Chromium."""
    if chromium_path() is None:
        return True, "no paint was measured: Chromium is not installed"
    with chromium() as browser, tab(browser) as (page, _):
        page.goto(url)
        until(lambda: page.evaluate("ingero.paints.length >= 20"))
        paints = sorted(page.evaluate("ingero.paints"))
    middle = paints[len(paints) // 2]
    text = f"a paint of {NODES} nodes takes {middle:.1f} ms in the median (limit {MAX_PAINT_MS} ms)"
    return middle < MAX_PAINT_MS, f"{text}, {paints[-1]:.1f} ms at most"


if __name__ == "__main__":
    main()
