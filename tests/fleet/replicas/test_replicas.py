"""Several replicas of Fleet on one log (F058): what all of them know, and what each may do."""

import asyncio
from typing import Any

import pytest
from tests.support.pushes import health
from tests.support.replicas import NODES, Replicas, push_scores, run_job, spoil
from tests.support.verdict_pushes import own_time_push
from tests.support.waiting import PATIENCE_S, until_async

QUICK: dict[str, Any] = {"processors": {"ingero": {"verdict": {"warmup_samples": 20}}}}


async def test_replicas_agree_on_scores_that_each_received_a_part_of() -> None:
    world = Replicas("a", "b", "c")
    await world.until_ready()
    for second in range(6):
        push_scores(world, second)
        await world.seconds(1)
    assert len(world.digests()) == 1
    for service in world.services.values():
        assert len(service.processor.clusters["train"].roster.rows) == NODES
        served = service.processor.served("train")
        assert served.quorum_met
        assert service.intake.served("train") == served
    assert world.replica("a").shared.agreement.mismatches == 0


async def test_two_replicas_with_pushes_in_turns_say_what_one_says() -> None:
    verdicts = []
    for names in (("a",), ("a", "b")):
        world = Replicas(*names, **QUICK)
        await world.until_ready()
        verdicts.append(await run_job(world, 70))
        assert len(world.digests()) == 1
    assert [verdict.rank for _, verdict in verdicts[0]] == [5]
    assert verdicts[0] == verdicts[1]


async def test_a_killed_replica_changes_nothing_and_comes_back_equal() -> None:
    world = Replicas("a", "b", "c", **QUICK)
    await world.until_ready()
    before = await run_job(world, 70)
    del world.services["b"]
    assert before[0][1].episode
    await run_job(world, 3)
    world.add("b")
    await world.until_ready()
    assert world.replica("b").counters.reloads == 1
    assert len(world.digests()) == 1
    after = world.replica("b").shared.judgement.verdicts.current()
    assert [verdict.episode for _, verdict in after] == [before[0][1].episode]


async def test_a_replica_that_joins_takes_no_push_before_it_knows_the_threshold() -> None:
    world = Replicas("a", "b")
    await world.until_ready()
    for second in range(6):
        push_scores(world, second)
        await world.seconds(1)
    late = world.add("c")
    assert not world.replica("c").is_ready
    await world.until_ready()
    agreed = world.services["a"].processor.served("train")
    assert late.intake.served("train") == agreed
    world.push("c", own_time_push("n5", 5, 1, 500.0), "train")  # without a score
    assert late.intake.served("train") == agreed
    world.score("c", "n0", 0.91)
    assert late.intake.clusters["train"].served.quorum_met


def served_by(world: Replicas, name: str) -> float:
    return world.services[name].processor.served("train").value


async def test_a_state_that_differs_is_counted_and_replaced() -> None:
    world = Replicas("a", "b", "c")
    await world.until_ready()
    for second in range(6):
        push_scores(world, second)
        await world.seconds(1)
    spoil(world, "b")
    for second in range(10):
        push_scores(world, second)
        await world.seconds(1)
    assert len(world.digests()) == 1
    counts = [world.replica(name).shared.agreement.mismatches for name in "abc"]
    assert counts == [0, 1, 0]


async def test_one_of_two_that_differ_cannot_be_told_so_both_start_again() -> None:
    world = Replicas("a", "b")
    await world.until_ready()
    for second in range(6):
        push_scores(world, second)
        await world.seconds(1)
    spoil(world, "a")
    for second in range(10):
        push_scores(world, second)
        await world.seconds(1)
    assert len(world.digests()) == 1
    assert served_by(world, "a") > 0.85


async def test_other_settings_keep_a_replica_out_and_it_says_why() -> None:
    world = Replicas("a", "b")
    await world.until_ready()
    world.add("c", processors={"ingero": {"threshold": {"k": 3.0}}})
    await world.seconds(10)
    assert not world.replica("c").is_ready
    assert world.replica("c").why_not == "a runs with another version or other settings"
    assert world.replica("a").is_ready


async def test_a_log_that_is_away_for_long_means_no_quorum_and_then_a_return_without_alarm() -> (
    None
):
    world = Replicas("a", "b")
    await world.until_ready()
    await run_job(world, 40, slow=False)
    intake = world.services["a"].intake
    value = intake.served("train").value
    world.log.is_away = True
    await run_job(world, 20, slow=False)
    assert intake.served("train").quorum_met  # the last threshold holds for a while
    await run_job(world, 40, slow=False)
    assert not intake.served("train").quorum_met
    assert intake.served("train").value == value
    world.log.is_away = False
    verdicts = await run_job(world, 20, slow=False)
    assert intake.served("train").quorum_met
    assert verdicts == []
    assert len(world.digests()) == 1
    shared = world.replica("a").shared
    assert len(shared.processor.clusters["train"].roster.rows) == NODES


async def test_nodes_that_pushed_while_the_log_was_away_are_known_before_its_first_tick() -> None:
    world = Replicas("a", "b")
    await world.until_ready()
    world.log.is_away = True
    push_scores(world)
    await world.seconds(10)
    world.log.is_away = False
    await world.seconds(5)  # nobody pushes again meanwhile
    counts = world.services["a"].processor.clusters["train"].counts
    assert (counts["active"], counts["silent"]) == (NODES, 0)


async def test_entries_that_were_trimmed_lead_to_a_snapshot() -> None:
    world = Replicas("a", "b")
    await world.until_ready()
    push_scores(world)
    await world.seconds(2)
    slow = world.services.pop("b")
    for second in range(200):
        push_scores(world, second)
        await world.seconds(1)
    world.services["b"] = slow
    await world.seconds(2)
    replica = world.replica("b")
    assert (replica.counters.missed, len(world.digests())) == (1, 1)
    assert replica.counters.reloads == 1


async def test_a_report_is_described_once_and_packed_afterwards() -> None:
    world = Replicas("a", "b")
    await world.until_ready()
    push_scores(world)
    await world.seconds(1)
    push_scores(world)
    changes = list(world.replica("a").intake.changes(world.now_s))
    assert [(name, len(packed), named) for name, packed, named in changes] == [
        ("train", 4 * 29, ())
    ]


async def test_a_node_that_moves_between_replicas_keeps_its_newest_score() -> None:
    world = Replicas("a", "b")
    await world.until_ready()
    world.score("a", "n0", 0.9)
    await world.seconds(1)
    old_ns = int(world.now_s * 1e9)
    world.score("b", "n0", 0.8)
    await world.seconds(1)
    world.push("a", health("n0", 0.9, sent_ns=old_ns - 10**9))  # a retry that was overtaken
    await world.seconds(1)
    roster = world.services["a"].processor.clusters["train"].roster
    assert roster.score[roster.rows["n0"]] == 0.8


@pytest.mark.parametrize("steps", range(-3, 6))
async def test_a_replica_stops_also_when_news_come_at_that_moment(steps: int) -> None:
    replica = Replicas("a").replica("a")
    replica.start()
    await until_async(lambda: replica._has_news._waiters)

    async def tell() -> None:
        for _ in range(steps):
            await asyncio.sleep(0)
        replica.alert_sent("pager", ("e", "begin"))

    telling = asyncio.create_task(tell())
    for _ in range(-steps):
        await asyncio.sleep(0)
    stopping = asyncio.create_task(replica.stop())
    await asyncio.wait([telling, stopping], timeout=PATIENCE_S)
    assert stopping.done()
