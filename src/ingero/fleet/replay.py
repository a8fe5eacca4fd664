"""Replay recorded inputs: the same pushes at the same times, verdicts compared byte for byte."""

from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from ingero.config.rates import parse_rates
from ingero.contract.otlp.codec import decode_protobuf
from ingero.contract.otlp.values import MetricsRequest
from ingero.contract.verdict import Verdict, encode_one
from ingero.core.verdict.engine import PeerReason
from ingero.core.verdict.policy import VerdictPolicy
from ingero.errors import ForeignFile
from ingero.fleet.episodes.preamble import decode_policy
from ingero.fleet.episodes.state_codec import decode_state
from ingero.fleet.verdicts import VerdictService
from ingero.storage.input_log import (
    POLICY,
    PUSH,
    RATES,
    STATE,
    TICK,
    VERDICT,
    read_inputs,
)


@dataclass(frozen=True, slots=True)
class Replayed:
    """One verdict of a replay; `peers` says why nobody else in the cohort was blamed then."""

    at_s: float
    cluster: str
    verdict: Verdict
    is_same: bool
    peers: tuple[PeerReason, ...]


@dataclass(slots=True)
class Replay:
    """All verdicts of a replay.

    `missing` were recorded but not reproduced, for example because the oldest file is gone.
    """

    verdicts: list[Replayed] = field(default_factory=list)
    missing: list[Verdict] = field(default_factory=list)
    pushes: int = 0
    ticks: int = 0

    @property
    def is_same(self) -> bool:
        """Whether every verdict is byte for byte as it was recorded."""
        return not self.missing and all(each.is_same for each in self.verdicts)


def replay(folder: Path) -> Replay:
    """Run a recording again with an empty verdict service."""
    result, service, policy = Replay(), VerdictService(), VerdictPolicy()
    pending: list[tuple[str, bytes, int]] = []  # not yet compared with a recorded verdict
    for entry in read_inputs(folder):
        if entry.kind == RATES and not service.clusters:
            service = VerdictService(parse_rates(entry.body, "recorded rates"), policy)
        elif entry.kind == POLICY and not service.clusters:
            policy = decode_policy(entry.body)
            service = VerdictService(service.rates, policy)
        elif entry.kind == STATE:
            service.clusters[entry.cluster] = decode_state(entry.body)
            pending.clear()  # a recorded verdict follows its tick
        elif entry.kind == PUSH:
            result.pushes += 1
            service.take(decode_protobuf(MetricsRequest, entry.body), entry.cluster, entry.at_s)
        elif entry.kind == TICK:
            result.ticks += 1
            for cluster, verdict in service.tick(entry.at_s):
                peers = () if verdict.engine else _peers(service, cluster, verdict)
                pending.append((cluster, encode_one(verdict), len(result.verdicts)))
                result.verdicts.append(Replayed(entry.at_s, cluster, verdict, False, peers))
        elif entry.kind == VERDICT:
            _compare(result, pending, entry.cluster, entry.body)
    return result


def _peers(service: VerdictService, cluster: str, verdict: Verdict) -> tuple[PeerReason, ...]:
    return tuple(service.clusters[cluster].engine.peer_reasons(verdict))


def _compare(
    result: Replay, pending: list[tuple[str, bytes, int]], cluster: str, recorded: bytes
) -> None:
    """Mark the replayed verdict that equals the recorded one, or note that it is missing."""
    for place, (where, text, index) in enumerate(pending):
        if (where, text) == (cluster, recorded):
            result.verdicts[index] = replace(result.verdicts[index], is_same=True)
            del pending[place]
            return
    try:
        result.missing.append(msgspec.json.decode(recorded, type=Verdict))
    except (msgspec.DecodeError, RecursionError) as error:
        raise ForeignFile(f"a recorded verdict of {cluster} is damaged: {error}") from None
