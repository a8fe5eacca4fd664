"""kill -9 of Echo and its store process at random moments under load.

Every acknowledged event must be found exactly once. `python -m tests.e2e.echo_crash --kills 20`
prints one line per kill and exits 1 on the first difference.
"""

import argparse
import asyncio
import os
import random
import signal
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from tests.support.echo_process import TOKEN, EchoProcess
from tests.support.echo_samples import metrics_body

BATCH = 20
PRODUCERS = 8
PROTOBUF = {"Content-Type": "application/x-protobuf", "Authorization": f"Bearer {TOKEN}"}


@dataclass
class Load:
    """Producers that repeat a request, with the same bytes, until it is acknowledged."""

    acknowledged: set[int] = field(default_factory=set)
    retries: int = 0
    next_batch: int = 0
    stopping: bool = False
    url: str = ""

    async def run(self) -> None:
        await asyncio.gather(*(self._produce() for _ in range(PRODUCERS)))

    async def _produce(self) -> None:
        timeout = aiohttp.ClientTimeout(10)
        async with aiohttp.ClientSession(headers=PROTOBUF, timeout=timeout) as session:
            while not self.stopping:
                number = self.next_batch
                self.next_batch += 1
                body = metrics_body(
                    f"n{number % 50}", points=BATCH, first=number * BATCH, batch=number
                )
                while not await self._send(session, body):
                    self.retries += 1
                    await asyncio.sleep(0.05)
                self.acknowledged.add(number)

    async def _send(self, session: aiohttp.ClientSession, body: bytes) -> bool:
        try:
            async with session.post(f"{self.url}/v1/metrics", data=body) as reply:
                return reply.status == 200
        except (aiohttp.ClientError, TimeoutError):
            return False


@dataclass(frozen=True)
class Outcome:
    """The result of a run of kills."""

    kills: int
    acknowledged: int
    lost: int
    doubled: int
    retries: int
    events: int


async def crash(folder: Path, kills: int, seed: int, report: bool = False) -> Outcome:
    """Kill parent and store in turn, then count the events."""
    chance = random.Random(seed)
    echo = EchoProcess(folder)
    echo.start()
    load = Load(url=f"http://{echo.addresses['http']}")
    producers = asyncio.create_task(load.run())
    for number in range(kills):
        await asyncio.sleep(chance.uniform(0.2, 1.5))
        before = len(load.acknowledged)
        began = time.monotonic()
        if number % 2 == 0:
            echo.kill()
            await asyncio.to_thread(echo.start)
            load.url = f"http://{echo.addresses['http']}"
        else:
            os.kill(echo.store_pid(), signal.SIGKILL)
        if report:
            who = "store " if number % 2 else "parent"
            print(
                f"kill {number + 1:3} {who} after {before * BATCH} events, back in "
                f"{time.monotonic() - began:.2f} s",
                flush=True,
            )
    await asyncio.sleep(0.5)
    load.stopping = True
    await producers
    status = await asyncio.to_thread(echo.stop)
    assert status == 0, (folder / "echo.log").read_text()[-2000:]
    rows = echo.query(
        "SELECT (attrs->>'batch')::INT, count(*), count(DISTINCT idx) FROM events GROUP BY 1"
    )
    found = {number: (count, distinct) for number, count, distinct in rows}
    lost = sum(1 for number in load.acknowledged if found.get(number, (0, 0))[0] < BATCH)
    doubled = sum(1 for count, _ in found.values() if count > BATCH)
    return Outcome(
        kills,
        len(load.acknowledged) * BATCH,
        lost,
        doubled,
        load.retries,
        sum(count for count, _ in found.values()),
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="echo-crash-") as folder:
        outcome = asyncio.run(crash(Path(folder), options.kills, options.seed, report=True))
    print(f"seed {options.seed}: {outcome}")
    passed = outcome.lost == 0 and outcome.doubled == 0
    print("PASS: every acknowledged event was found, none twice" if passed else "FAIL")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
