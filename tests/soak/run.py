"""One soak: start everything, load it, break it on schedule, and measure until the time is over."""

import asyncio
import contextlib
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.soak.agents import CLUSTER
from tests.soak.faults import Clock, Faults, small_disk
from tests.soak.ledger import BATCH_ATTR, METRIC, Account, Named, Point
from tests.soak.load import Producers, Ranks
from tests.soak.plan import Plan
from tests.soak.sampling import Sample, sample
from tests.soak.services import Child, Service, Services
from tests.soak.watch import exported, loaded_events, named_in_log, named_now
from tests.support.echo_process import EchoProcess
from tests.support.fault_proxy import FaultProxy
from tests.support.gpu_jobs import compile_library

from ingero.contract import names
from ingero.sim.node import write_control

AGENTS = 200
INTERVAL_S = 5.0  # of the pushes of an agent
SAMPLE_S = 5.0
SLOW_LEVEL = 0.6  # of the throughput of a healthy node
DISK_MIB, DISK_MIB_PER_MINUTE = 448, 10  # segments of the journal, and what is stored
CLOCK_SOURCE = Path(__file__).parents[1] / "e2e" / "skewed_clock.c"
HARNESS = "harness"
LOG_CHARS = 200_000


@dataclass
class Outcome:
    """Everything that a run measured."""

    plan: Plan
    samples: list[Sample] = field(default_factory=list)
    named: list[Named] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    account: Account = field(default_factory=lambda: Account(0, 0, 0, 0))
    services: list[str] = field(default_factory=list)  # everything that was to be sampled
    ended: list[str] = field(default_factory=list)  # services that ended on their own
    retries: int = 0
    stored: int = 0
    forwarded: int = 0  # requests that Fleet sent on to Echo since its last start
    dropped: dict[str, int] = field(default_factory=dict)  # requests that it did not, by reason
    behind: int = 0  # acknowledged events that Echo had not loaded when it was asked to stop
    logs: dict[str, str] = field(default_factory=dict)  # the end of each log, by its name


Tell = Callable[[str], None]


async def soak(plan: Plan, folder: Path, tell: Tell, leak: list[str] | None = None) -> Outcome:
    """Run a plan in an empty folder; `leak` is a command that is sampled beside the services."""
    outcome = Outcome(plan)
    size_mib = int(DISK_MIB + DISK_MIB_PER_MINUTE * plan.length_s / 60)
    with small_disk(folder / "echo", size_mib) as has_disk:
        async with (
            FaultProxy(("127.0.0.1", 1)) as to_echo,
            FaultProxy(("127.0.0.1", 1)) as to_fleet,
        ):
            services = Services(
                folder, folder / "echo", to_echo, to_fleet, AGENTS, INTERVAL_S, can_record()
            )
            with wrong_clock(folder) as clock, services.running() as started:
                by_name = started | (leaking(folder, leak) if leak is not None else {})
                producers = Producers(f"http://{to_echo.address}")
                disk = folder / "echo" if has_disk else None
                faults = Faults(by_name, [to_echo, to_fleet], clock, disk, producers, plan.gap_s)
                try:
                    await _drive(outcome, services, by_name, faults, tell)
                finally:
                    if leak is not None:
                        by_name["leak"].kill()
                fleet_log = services.fleet.folder / "fleet.log"
                outcome.named += named_in_log(fleet_log, plan.straggler.from_s)
                outcome.logs = {
                    log.name: log.read_text()[-LOG_CHARS:] for log in folder.rglob("*.log")
                }
        settle(outcome, services.echo, producers)
    return outcome


def can_record() -> bool:
    """Can probes be attached here?"""
    return os.geteuid() == 0 and Path("/sys/kernel/btf/vmlinux").exists()


@contextlib.contextmanager
def wrong_clock(folder: Path):
    """Preload the clock into every process that is started inside the block."""
    clock = Clock(folder / "clock")
    library = compile_library(CLOCK_SOURCE, folder / "clock.so", "-fno-sanitize=undefined")
    wanted = {"LD_PRELOAD": str(library), "SKEW_FILE": str(clock.path)}
    os.environ.update(wanted)
    try:
        yield clock
    finally:
        for name in wanted:
            del os.environ[name]


def leaking(folder: Path, command: list[str]) -> dict[str, Service]:
    """Start a process that leaks, to see that a leak is noticed."""
    child = Child(folder / "leak.log", *command)
    child.start()
    return {"leak": Service("leak", lambda: child.pid, child.start, child.kill)}


async def _drive(
    outcome: Outcome, services: Services, by_name: dict[str, Service], faults: Faults, tell: Tell
) -> None:
    """Load and break the services until the plan is over."""
    plan, producers = outcome.plan, faults.producers
    outcome.services = list(by_name)
    ranks = Ranks(f"http://{faults.proxies[1].address}")
    began_s = time.monotonic()

    def now_s() -> float:
        return time.monotonic() - began_s

    async def break_things() -> None:
        for fault in plan.faults:
            await asyncio.sleep(max(0.0, fault.at_s - now_s()))
            at_s = now_s()
            note = f"{at_s:6.0f} s  {await faults.inject(fault)}"
            outcome.notes.append(note)
            tell(note)

    async def slow_one_node() -> None:
        for at_s, level in ((plan.straggler.from_s, SLOW_LEVEL), (plan.straggler.until_s, 1.0)):
            await asyncio.sleep(max(0.0, at_s - now_s()))
            write_control(services.folder / f"{plan.straggler.node}.control", level)
            ranks.slow_node = plan.straggler.node if level < 1.0 else None
            tell(f"{now_s():6.0f} s  {plan.straggler.node} works at {level:.0%}")

    async def look() -> None:
        while True:
            for service in by_name.values():
                pid, buffered = service.pid(), await asyncio.to_thread(service.buffer_bytes)
                if pid is None or buffered is None:
                    continue
                found = sample(now_s(), service.name, pid, service.disk, buffered)
                outcome.samples += [found] if found else []
            own = sample(now_s(), HARNESS, os.getpid(), None)
            outcome.samples += [own] if own else []
            outcome.named += await asyncio.to_thread(named_now, services.status_url(), now_s())
            await asyncio.sleep(SAMPLE_S)

    work = [asyncio.create_task(each) for each in (producers.run(), ranks.run(), look())]
    work += [asyncio.create_task(each) for each in (break_things(), slow_one_node())]
    done, _ = await asyncio.wait(work, timeout=plan.length_s, return_when=asyncio.FIRST_EXCEPTION)
    for task in done:
        task.result()  # a part of the harness that failed ends the run
    producers.stopping = ranks.stopping = True
    faults.clock.set_hours(0)
    await _take_stock(outcome, services, by_name)
    for task in work[2:]:
        task.cancel()
    await asyncio.gather(*work, return_exceptions=True)
    address = services.echo.addresses["mcp"]
    loaded = await asyncio.to_thread(loaded_events, address, producers.events)
    outcome.behind = max(0, producers.events - loaded)


async def _take_stock(outcome: Outcome, services: Services, by_name: dict[str, Service]) -> None:
    """Note what Fleet exported and which services have ended, before anything is stopped."""
    outcome.forwarded, outcome.dropped = await asyncio.to_thread(
        exported, services.fleet.addresses["metrics"]
    )
    outcome.ended = [name for name, service in by_name.items() if service.pid() is None]


def settle(outcome: Outcome, echo: EchoProcess, producers: Producers) -> None:
    """Compare the database of the stopped Echo with what it acknowledged."""
    rows = echo.query(
        f"""SELECT (attrs->>'$."{BATCH_ATTR}"')::BIGINT, epoch_ns(ts), value_double FROM events
        WHERE metric_name = '{METRIC}'"""
    )
    points: list[tuple[int, Point]] = [(batch, (at_ns, value)) for batch, at_ns, value in rows]
    outcome.account = producers.ledger.compare(points)
    outcome.retries = producers.retries
    outcome.stored = int(echo.query("SELECT count(*) FROM events")[0][0])
    events = echo.query(
        f"""SELECT DISTINCT node_id FROM events WHERE metric_name = '{names.STRAGGLER_EVENT}'
        AND cluster_id = '{CLUSTER}' AND value_int = 1"""
    )
    from_s = outcome.plan.straggler.from_s
    outcome.named += [Named(from_s, str(node), "events in Echo") for (node,) in events]
