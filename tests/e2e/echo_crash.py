"""kill -9 of Echo and its store process at random moments under load.

Some requests cannot be loaded. Every acknowledged event must be found exactly once, or its request
must be in quarantine, never both. `python -m tests.e2e.echo_crash --kills 20`
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
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
from tests.support.echo_process import TOKEN, EchoProcess
from tests.support.echo_samples import metrics_body
from tests.support.picky_database import REFUSED_METRIC, create_picky

from ingero.contract.otlp.codec import decode_protobuf
from ingero.contract.otlp.values import MetricsRequest, plain_attributes
from ingero.storage.quarantine import Quarantine, quarantine_directory

BATCH = 20
PRODUCERS = 8
POISONED_EVERY = 200  # one request in so many cannot be loaded
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
                name = "m" if number % POISONED_EVERY else REFUSED_METRIC
                body = metrics_body(
                    f"n{number % 50}", points=BATCH, first=number * BATCH, name=name, batch=number
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
    quarantined: int


async def crash(folder: Path, kills: int, seed: int, report: bool = False) -> Outcome:
    """Kill parent and store in turn, then count the events."""
    chance = random.Random(seed)
    echo = EchoProcess(folder)
    create_picky(echo.database)
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
    rows, aside = await asyncio.to_thread(loaded_batches, echo, len(load.acknowledged))
    found = {number: (count, distinct) for number, count, distinct in rows}
    lost = sum(
        1
        for number in load.acknowledged
        if found.get(number, (0, 0))[0] + aside.get(number, 0) * BATCH < BATCH
    )
    doubled = sum(
        1
        for number in found.keys() | aside.keys()
        if found.get(number, (0, 0))[0] + aside.get(number, 0) * BATCH > BATCH
    )
    return Outcome(
        kills,
        len(load.acknowledged) * BATCH,
        lost,
        doubled,
        load.retries,
        sum(count for count, _ in found.values()),
        len(aside),
    )


def loaded_batches(echo: EchoProcess, wanted: int) -> tuple[list[tuple], dict[int, int]]:
    """Stop Echo, and return its batches as (number, events, distinct events) and those set aside.

    A stop may end before everything is loaded. Then the journal keeps the rest for the next start,
    which is what an operator would do. What a start and a stop load nothing of is lost.
    """
    found, before = -1, -2
    while before < found < wanted:
        if found >= 0:
            echo.start()
        status = echo.stop()
        assert status == 0, (echo.folder / "echo.log").read_text()[-2000:]
        rows = echo.query(
            "SELECT (attrs->>'batch')::INT, count(*), count(DISTINCT idx) FROM events GROUP BY 1"
        )
        aside = quarantined_batches(echo.database)
        before, found = found, len(rows) + len(aside)
    return rows, aside


def quarantined_batches(database: Path) -> dict[int, int]:
    """Return how often each batch is in quarantine."""
    quarantine = Quarantine(quarantine_directory(database))
    assert quarantine.damaged == []
    batches: Counter[int] = Counter()
    for entry in quarantine.in_order():
        request = decode_protobuf(MetricsRequest, quarantine.read(entry).body)
        metric = request.resource_metrics[0].scope_metrics[0].metrics[0]
        batches[int(str(plain_attributes(metric.numbers[0].attributes)["batch"]))] += 1
    return batches


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="echo-crash-") as folder:
        outcome = asyncio.run(crash(Path(folder), options.kills, options.seed, report=True))
    print(f"seed {options.seed}: {outcome}")
    passed = outcome.lost == 0 and outcome.doubled == 0
    print("PASS: every acknowledged event was found or set aside, none twice" if passed else "FAIL")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
