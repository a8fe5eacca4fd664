"""Every panel has data on a real Prometheus during an incident, and nobody is slow afterwards."""

import asyncio
import contextlib
import subprocess
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import numpy as np
import pytest
import yaml
from deploy.grafana.make_dashboards import DASHBOARDS
from tests.support.dashboards import filled
from tests.support.peers import debian_program, free_port
from tests.support.pushes import NEVER_S, PB, post, protobuf, running
from tests.support.verdict_pushes import RATES, collectives_cache

from ingero.contract.measurements.collectives import encode_collectives
from ingero.fleet.app import FleetService

pytestmark = pytest.mark.e2e
EXAMPLE = Path(__file__).parents[2] / "deploy" / "prometheus" / "prometheus.yml"


@contextlib.asynccontextmanager
async def prometheus(folder: Path, config: dict[str, Any], *flags: str) -> AsyncIterator[str]:
    """Run the real Prometheus with its data in a folder."""
    program, port = debian_program("prometheus"), free_port()
    folder.mkdir()
    file = folder / "prometheus.yml"
    file.write_text(yaml.safe_dump(config))
    command = [program, f"--config.file={file}", f"--storage.tsdb.path={folder / 'data'}",
               f"--web.listen-address=127.0.0.1:{port}", *flags]  # fmt: skip
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log)
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


async def query(session: aiohttp.ClientSession, url: str, expression: str) -> list[Any]:
    """Return what Prometheus has now; nothing while it starts."""
    with contextlib.suppress(aiohttp.ClientError):
        async with session.get(f"{url}/api/v1/query", params={"query": expression}) as reply:
            if reply.status == 200:
                found: list[Any] = (await reply.json())["data"]["result"]
                return found
            assert reply.status == 503, await reply.text()
    return []


async def until(condition: Any, what: str) -> None:
    end_s = time.monotonic() + 60
    while not await condition():
        assert time.monotonic() < end_s, what
        await asyncio.sleep(0.1)


class Job:
    """Eight ranks whose collectives are pushed, on a clock that ends now."""

    def __init__(self, fleet: FleetService) -> None:
        self.fleet, self.second = fleet, 0
        self.rng = np.random.default_rng(2)
        self.base_s = time.monotonic() - 250

    def run(self, seconds: int, slow: int | None) -> None:
        for _ in range(seconds):
            now_s = self.base_s + self.second
            for node in range(4):
                mine = collectives_cache(self.second, slow, self.rng, False, node)
                request = encode_collectives(mine, "c", f"n{node}")
                self.fleet.processor.on_measurements(request, "c", now_s, None)
            self.fleet.tick(now_s)
            self.second += 1


def shipped_config(fleet: FleetService, store: str) -> dict[str, Any]:
    """Return the shipped example with the addresses of this test."""
    config: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())
    del config["rule_files"], config["alerting"]
    config["global"] = {"scrape_interval": "500ms"}
    targets = {"ingero-fleet": "metrics", "ingero-nodes": "prometheus"}
    config["scrape_configs"] = [
        {**each, "static_configs": [{"targets": [fleet.addresses[targets[each["job_name"]]]]}]}
        for each in config["scrape_configs"]
        if each["job_name"] in targets
    ]
    config["remote_write"] = [{"url": f"{store}/api/v1/write"}]
    return config


async def test_every_panel_has_data_and_the_straggler_panel_is_empty_afterwards(
    tmp_path: Path,
) -> None:
    """F027, F028, F076: also in a store that the example writes to."""
    rates = tmp_path / "rates.yaml"
    rates.write_text(RATES)
    settings = {"ingero": {"verdict": {"rates_file": str(rates)}}}
    receiver = "--web.enable-remote-write-receiver"
    async with (
        running(tick_s=NEVER_S, processors=settings) as fleet,
        prometheus(tmp_path / "store", {"global": {}}, receiver) as store,
        prometheus(tmp_path / "prom", shipped_config(fleet, store)) as url,
        aiohttp.ClientSession() as session,
    ):
        for number in range(4):
            body = protobuf(f"n{number}", 0.9, cluster="c")
            await post(f"http://{fleet.addresses['http']}/v1/metrics", body, PB)
        job = Job(fleet)
        job.run(110, None)
        job.run(40, 3)
        queries = {
            f"{panel['title']}: {target['expr']}": filled(target["expr"])
            for content in DASHBOARDS.values()
            for panel in content["panels"]
            for target in panel["targets"]
        }
        empty = set(queries)

        async def all_have_data() -> bool:
            for name in sorted(empty):
                if await query(session, url, queries[name]):
                    empty.discard(name)
            return not empty

        with contextlib.suppress(AssertionError):
            await until(all_have_data, "some panels stay empty")
        assert empty == set()
        who = next(text for name, text in queries.items() if name.startswith("Who is slow"))
        [slow] = await query(session, url, who)
        assert (slow["metric"]["node_id"], slow["metric"]["rank"]) == ("n1", "3")
        assert (slow["metric"]["job"], slow["metric"]["ingero_job"]) == ("ingero-fleet", "j")
        await until(lambda: query(session, store, who), "remote write did not arrive")
        job.run(90, None)

        async def nobody_is_slow() -> bool:
            return not await query(session, url, who)

        await until(nobody_is_slow, "the straggler panel is not empty")
