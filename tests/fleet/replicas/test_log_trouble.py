"""What replicas do when the clock of their log is wrong, its end is lost, or two share a name."""

import time
from typing import Any

import pytest
from tests.support.replicas import NODES, Replicas, push_scores, run_job, spoil
from tests.support.verdict_pushes import own_time_push

QUICK: dict[str, Any] = {"processors": {"ingero": {"verdict": {"warmup_samples": 20}}}}
HOUR_S = 3600.0


async def test_a_clock_of_the_log_that_jumps_ahead_makes_no_node_silent() -> None:
    world = Replicas("a", "b", **QUICK)
    await world.until_ready()
    await run_job(world, 40, slow=False)
    world.log.skew_s = HOUR_S
    await world.seconds(5)  # nobody pushes meanwhile
    counts = world.services["a"].processor.clusters["train"].counts
    assert (counts["active"], counts["silent"]) == (NODES, 0)
    roster = world.services["a"].processor.clusters["train"].roster
    assert roster.pushes[roster.rows["n0"]] == 2 * 40  # a score and own times each second
    assert await run_job(world, 30, slow=False) == []
    assert len(world.digests()) == 1


@pytest.mark.parametrize("back_s", [20.0, HOUR_S])
async def test_a_clock_of_the_log_that_steps_back_stops_nothing(back_s: float) -> None:
    world = Replicas("a", "b", "c", **QUICK)
    await world.until_ready()
    await run_job(world, 30)
    world.log.skew_s = -back_s
    shared = world.replica("b").shared
    before_s = shared.ticked_s
    [(_, verdict)] = await run_job(world, 60)
    assert verdict.rank == 5
    assert 50 <= shared.ticked_s - before_s <= 60
    del world.services["a"]
    await world.seconds(10)
    assert shared.agreement.alive(shared.at_s) == ["b", "c"]
    assert shared.agreement.mismatches == 0


def lose_log(world: Replicas) -> None:
    """Forget all entries and the snapshot, as an engine that starts again without persistence."""
    world.log.entries.clear()
    world.log._number, world.log._snapshot = 0, None


async def test_states_that_differ_when_the_engine_lost_everything_become_equal() -> None:
    world = Replicas("a", "b")
    await world.until_ready()
    for second in range(30):
        push_scores(world, second)
        await world.seconds(1)
    spoil(world, "b")
    lose_log(world)
    for second in range(60):
        push_scores(world, second)
        await world.seconds(1)
    assert len(world.digests()) == 1


async def test_an_end_of_the_log_that_a_fail_over_lost_is_forgotten_by_all() -> None:
    world = Replicas("a", "b", "c", **QUICK)
    await world.until_ready()
    await run_job(world, 70)
    behind = world.services.pop("c")  # it has not read what will be lost
    kept = len(world.log.entries)
    await run_job(world, 2)
    del world.log.entries[kept:]
    world.log._number = world.log.entries[-1].number
    world.services["c"] = behind
    [(_, verdict)] = await run_job(world, 10)
    assert verdict.rank == 5
    assert len(world.digests()) == 1
    replicas = [world.replica(name) for name in "abc"]
    assert [each.counters.missed for each in replicas] == [1, 1, 0]
    assert [each.shared.agreement.mismatches for each in replicas] == [0, 0, 0]


async def test_a_second_process_of_the_same_name_takes_no_push_and_says_why() -> None:
    """Else each would drop the measurements of the other, and both would send every alert."""
    world = Replicas("a", "b")
    await world.until_ready()
    second = world.add("b2", cluster_log={"replica": "b"})
    await world.seconds(10)
    assert world.replica("b2").why_not == (
        "another replica is named b, too; each needs a name of its own"
    )
    assert [world.replica(name).is_ready for name in ("a", "b", "b2")] == [True, True, False]
    assert world.replica("a").shared.agreement.alive(world.replica("a").shared.at_s) == ["a", "b"]
    del world.services["b"]  # and it takes over from one that is gone
    await world.seconds(10)
    assert world.replica("b2").is_ready
    push_scores(world)
    world.push("b2", own_time_push("n5", 5, 1, 500.0), "train")
    await world.seconds(1)
    assert second.processor.clusters["train"].counts["active"] == NODES


async def test_of_two_new_processes_of_one_name_one_takes_part() -> None:
    world = Replicas("a")
    world.add("a2", cluster_log={"replica": "a"})
    await world.seconds(10)
    assert [world.replica(name).is_ready for name in ("a", "a2")] == [True, False]


async def test_a_replica_that_was_killed_is_back_at_once_under_its_name() -> None:
    world = Replicas("a", "b")
    await world.until_ready()
    del world.services["b"]
    world.add("b")
    await world.seconds(4)
    assert world.replica("b").is_ready


async def test_a_replica_whose_clock_was_set_back_before_it_restarted_still_tells_measurements(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    world = Replicas("a", "b")
    await world.until_ready()
    await run_job(world, 3, slow=False)
    del world.services["b"]
    before_ns = time.time_ns() - 10**13
    monkeypatch.setattr(time, "time_ns", lambda: before_ns)
    world.add("b")
    await world.until_ready()
    known = world.services["a"].verdicts.counters.own_times
    await run_job(world, 3, slow=False)
    assert world.services["a"].verdicts.counters.own_times == known + 3 * NODES
