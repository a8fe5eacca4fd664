"""A real process that leaks is noticed by what `make soak` samples and how it judges."""

import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.soak.ledger import Account, Injected, Named
from tests.soak.plan import Plan
from tests.soak.report import BUFFER_LIMIT_MIB, problems, report
from tests.soak.run import Outcome
from tests.soak.sampling import Sample, disk_bytes, sample
from tests.soak.watch import NODE_STATUS

ROOT = Path(__file__).parents[2]
MINUTES = 24
STRAGGLER = Injected("n7", 800.0, 1000.0)


@pytest.fixture
def process() -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "tests.soak.leak"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == "ready\n"
        yield started
        started.kill()


def watched(process: subprocess.Popen[str], line: str) -> Outcome:
    """A run of pretended minutes, in each of which the process is sampled and told something."""
    assert process.stdin is not None and process.stdout is not None
    samples: list[Sample] = []
    for minute in range(MINUTES):
        found = sample(60.0 * minute, "service", process.pid, None)
        assert found is not None
        samples.append(found)
        process.stdin.write(line + "\n")
        process.stdin.flush()
        assert process.stdout.readline() == "done\n"
    plan = Plan(60.0 * MINUTES, 60.0, (), STRAGGLER)
    named = [Named(900.0, "n7", NODE_STATUS), Named(900.0, "n7", "verdict about a rank")]
    return Outcome(plan, samples, named, account=Account(10, 0, 0, 0))


def test_a_leak_of_memory_and_handles_fails_the_run(process: subprocess.Popen[str]) -> None:
    outcome = watched(process, "leak")
    first, second = problems(outcome)
    assert first.startswith("service has ") and first.endswith(" more memory every ten minutes")
    assert second.endswith(" more file handles every ten minutes")
    assert f"FAIL: {first}" in report(outcome)


def test_the_same_process_without_a_leak_passes(process: subprocess.Popen[str]) -> None:
    outcome = watched(process, "work")
    assert problems(outcome) == []
    assert report(outcome).endswith("PASS")


def test_a_service_that_was_replaced_unasked_fails_the_run(process: subprocess.Popen[str]) -> None:
    outcome = watched(process, "work")
    last = outcome.samples[-1]
    replaced = Sample(last.at_s + 5, last.name, last.pid + 1, 1, 1, 1, 0, 0.0)
    outcome.samples.append(replaced)
    assert problems(outcome) == ["service was replaced 1 times in the second half"]


def test_each_other_fault_of_a_run_is_named(process: subprocess.Popen[str]) -> None:
    outcome = watched(process, "work")
    outcome.account = Account(10, 1, 0, 0)
    outcome.named = [Named(1.0, "n3", NODE_STATUS)]
    outcome.dropped = {"queue_full": 4}
    outcome.behind = 60
    outcome.ended = ["echo"]
    said = problems(outcome)
    assert [text.split(":")[0] for text in said] == [
        "acknowledged events are not stored as they were sent",
        "Echo does not load what it acknowledged",
        "n3 was named and was not slow (status of a node)",
        "n7 was slow and not named",
        "n7 was slow and not named",
        "Fleet did not forward 4 requests",
        "echo ended on its own",
    ]


def test_a_process_that_ended_has_no_sample_and_disk_is_counted(
    process: subprocess.Popen[str], tmp_path: Path
) -> None:
    (tmp_path / "data").write_bytes(b"x" * 100_000)
    assert disk_bytes(tmp_path) >= 100_000
    assert disk_bytes(tmp_path / "data") >= 100_000
    process.kill()
    process.wait()
    assert sample(0.0, "service", process.pid, None) is None


def test_a_cache_with_a_limit_is_no_leak_until_it_exceeds_the_limit(
    process: subprocess.Popen[str],
) -> None:
    outcome = watched(process, "work")
    level = outcome.samples[0].rss_bytes
    outcome.samples = [
        replace(s, rss_bytes=level + (n << 20), buffer_bytes=n << 20)
        for n, s in enumerate(outcome.samples)
    ]
    assert problems(outcome) == []
    assert "cached 12 MiB of its database in the middle and 23 MiB at the end" in report(outcome)
    outcome.samples = [replace(s, buffer_bytes=BUFFER_LIMIT_MIB + 1 << 20) for s in outcome.samples]
    assert f"the store caches more than {BUFFER_LIMIT_MIB} MiB" in problems(outcome)


def test_a_service_that_was_never_sampled_fails_the_run(process: subprocess.Popen[str]) -> None:
    outcome = watched(process, "work")
    outcome.services = ["service", "store"]
    assert problems(outcome) == ["store was not seen in the second half"]
