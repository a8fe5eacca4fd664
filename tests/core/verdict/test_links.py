"""Slow links are reported as network, without a rank, and only when the links are slow."""

import numpy as np
from tests.support.verdict_world import START_S, blamed, member, noise

from ingero.contract.verdict import CauseClass, Verdict, VerdictState
from ingero.core.verdict.engine import VerdictEngine
from ingero.core.verdict.own_times import make_batch

RANKS, ONSET = 8, 200


def run(
    own_s: np.ndarray,
    transfer_s: np.ndarray,
    roles: tuple[str, ...] = ("",) * RANKS,
    *,
    gpu_timed: bool = True,
) -> list[tuple[int, Verdict]]:
    """Run one step a second that ends with one collective of all ranks."""
    engine = VerdictEngine()
    members = np.array([engine.register(member(r, role=roles[r]), START_S) for r in range(RANKS)])
    found = []
    for second, own in enumerate(own_s):
        span = np.full(RANKS, own.max() + transfer_s[second])
        idle = np.full(RANKS, 0.1 if gpu_timed else np.nan)
        batch = make_batch(members, own, np.full(RANKS, second), idle_s=idle, span_s=span)
        engine.observe(batch, START_S + second)
        found += [(second, verdict) for verdict in engine.tick(START_S + second)]
    return found


def transfers(seconds: int, seed: int = 3) -> np.ndarray:
    return 0.15 * np.exp(np.random.default_rng(seed).normal(0, 0.10, seconds))


def network(found: list[tuple[int, Verdict]]) -> list[tuple[int, VerdictState]]:
    return [
        (second, verdict.state)
        for second, verdict in found
        if verdict.cause_class is CauseClass.NETWORK
    ]


def test_slow_links_are_one_event_that_blames_nobody_and_ends() -> None:
    own, transfer = np.exp(noise(450, RANKS)), transfers(450)
    transfer[ONSET:330] *= 2
    found = run(own, transfer)
    (begin, opened), (end, closed) = network(found)
    assert (opened, closed) == (VerdictState.FLEET_EVENT, VerdictState.RESOLVED)
    assert ONSET + 30 <= begin < 330 < end
    assert blamed(found) == set()
    event = next(v for _, v in found if v.cause_class is CauseClass.NETWORK)
    assert event.node == ""
    assert "waits least" in event.evidence


def test_a_lossy_link_is_network_too() -> None:
    own, transfer = np.exp(noise(450, RANKS)), transfers(450)
    lost = np.random.default_rng(1).random(450) < 0.25
    lost[:ONSET] = False
    transfer[lost] += 0.4
    assert [state for _, state in network(run(own, transfer))][:1] == [VerdictState.FLEET_EVENT]


def test_a_slow_rank_is_blamed_and_the_links_are_not() -> None:
    own = noise(350, RANKS)
    own[ONSET:, 5] += np.log1p(0.20)
    found = run(np.exp(own), transfers(350))
    assert (blamed(found), network(found)) == ({5}, [])


def test_a_slow_rank_is_blamed_beside_slow_links() -> None:
    own, transfer = noise(420, RANKS), transfers(420)
    transfer[ONSET:] *= 2
    own[300:, 5] += np.log1p(0.10)
    found = run(np.exp(own), transfer)
    assert blamed(found) == {5}
    assert len(network(found)) == 1


def test_batches_that_grow_uneven_are_not_the_links() -> None:
    own = noise(400, RANKS)
    own[ONSET:] += np.log1p(np.random.default_rng(2).exponential(0.3, (200, RANKS)))
    assert network(run(np.exp(own), transfers(400))) == []


def test_a_stage_that_others_wait_for_is_not_the_links() -> None:
    own = noise(400, RANKS)
    own[ONSET:, 4:] += np.log1p(0.30)
    assert network(run(np.exp(own), transfers(400), ("pp0",) * 4 + ("pp1",) * 4)) == []


def test_a_pause_without_transfers_does_not_make_the_next_ones_slow() -> None:
    transfer = transfers(500)
    transfer[ONSET : ONSET + 180] = 0.001
    assert network(run(np.exp(noise(500, RANKS)), transfer)) == []


def test_host_times_say_nothing_about_links() -> None:
    transfer = transfers(350)
    transfer[ONSET:] *= 3
    assert network(run(np.exp(noise(350, RANKS)), transfer, gpu_timed=False)) == []
