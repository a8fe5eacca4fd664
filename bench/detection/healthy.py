"""Scenario 1: a healthy day of many fleets, streamed because it does not fit in memory."""

from collections.abc import Callable

import numpy as np

from bench.detection.detectors import Outcome, run_threshold
from bench.detection.live import START_S
from bench.detection.model import Noise
from bench.detection.score import Score
from bench.detection.world import World
from ingero.contract.verdict import VerdictState
from ingero.core.verdict.engine import VerdictEngine
from ingero.core.verdict.members import Member
from ingero.core.verdict.own_times import make_batch

MIX = [3] * 170 + [8] * 64 + [64] * 8 + [512]  # 2,046 ranks in 243 fleets of every size
BLOCK_S = 600
THRESHOLD_HOURS = 2.0  # enough for rules with thousands of false alarms


def run_healthy(node_hours: float, seed: int, progress: Callable[[str], None]) -> Score:
    """Run the verdict engine on `node_hours` of healthy fleets; each straggler is a false alarm."""
    noise = Noise(MIX, seed)
    engine = VerdictEngine()
    members = np.array(
        [
            engine.register(
                Member(cluster=f"fleet{fleet}", node=f"node{rank}", rank=rank, job="job"), START_S
            )
            for fleet, size in enumerate(MIX)
            for rank in range(size)
        ]
    )
    seconds = int(np.ceil(node_hours * 3600 / len(members) / BLOCK_S)) * BLOCK_S
    alarms = 0
    for begin in range(0, seconds, BLOCK_S):
        own = np.exp(noise.block(BLOCK_S))
        for offset in range(BLOCK_S):
            now_s = START_S + begin + offset
            engine.observe(
                make_batch(members, own[offset], np.full(len(members), begin + offset)), now_s
            )
            alarms += sum(verdict.state is VerdictState.STRAGGLER for verdict in engine.tick(now_s))
        done = (begin + BLOCK_S) * len(members) / 3600
        progress(
            f"healthy: {done:,.0f} of {seconds * len(members) / 3600:,.0f} node-hours, "
            f"{alarms} false alarms"
        )
    return Score(0, 0, alarms, seconds * len(members) / 3600, 0, [])


def run_healthy_threshold(
    k: float, confirmations: int, seed: int, hours: float = THRESHOLD_HOURS
) -> Score:
    """Run the threshold rules on healthy fleets of 8 and 64 ranks."""
    result = Score(0, 0, 0, 0.0, 0, [])
    for size, fleets in ((8, 32), (64, 8)):
        world = World(size, Noise([size] * fleets, seed).block(int(hours * 3600)))
        outcome: Outcome = run_threshold(world, k, confirmations)
        result.false_alarms += len(outcome.alarms)
        result.node_hours += world.node_hours
    return result
