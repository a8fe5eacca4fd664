"""Replay of recorded inputs: the same pushes at the same times, verdicts compared byte for byte."""

from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from ingero.config.rates import parse_rates
from ingero.contract.otlp.codec import decode_protobuf
from ingero.contract.otlp.values import MetricsRequest
from ingero.contract.verdict import Verdict
from ingero.core.verdict.engine import Standing
from ingero.fleet.verdicts import VerdictDesk
from ingero.storage.input_log import PUSH, RATES, TICK, VERDICT, read_inputs

_ENCODER = msgspec.json.Encoder(order="deterministic")


@dataclass(frozen=True, slots=True)
class Replayed:
    """One verdict as replayed; `peers` says how everybody in the cohort stood at that moment."""

    at_s: float
    cluster: str
    verdict: Verdict
    is_same: bool
    peers: tuple[Standing, ...]


@dataclass(slots=True)
class Replay:
    """Everything that was said. `missing` were recorded but not said again, as after the oldest file went."""

    verdicts: list[Replayed] = field(default_factory=list)
    missing: list[Verdict] = field(default_factory=list)
    pushes: int = 0
    ticks: int = 0

    @property
    def is_same(self) -> bool:
        """Whether every verdict came out byte for byte as it was recorded."""
        return not self.missing and all(each.is_same for each in self.verdicts)


def encode_one(verdict: Verdict) -> bytes:
    """The bytes that are compared."""
    return _ENCODER.encode(verdict)


def replay(folder: Path) -> Replay:
    """Run a recording again from an empty desk."""
    result, desk = Replay(), VerdictDesk()
    said: list[tuple[str, bytes, int]] = []  # not yet compared with what was recorded
    for entry in read_inputs(folder):
        if entry.kind == RATES and not desk.clusters:
            desk = VerdictDesk(parse_rates(entry.body, "recorded rates"))
        elif entry.kind == PUSH:
            result.pushes += 1
            desk.take(decode_protobuf(MetricsRequest, entry.body), entry.cluster, entry.at_s)
        elif entry.kind == TICK:
            result.ticks += 1
            for cluster, verdict in desk.tick(entry.at_s):
                peers = tuple(desk.clusters[cluster].engine.standings(verdict))
                said.append((cluster, encode_one(verdict), len(result.verdicts)))
                result.verdicts.append(Replayed(entry.at_s, cluster, verdict, False, peers))
        elif entry.kind == VERDICT:
            _compare(result, said, entry.cluster, entry.body)
    return result


def _compare(
    result: Replay, said: list[tuple[str, bytes, int]], cluster: str, recorded: bytes
) -> None:
    for place, (where, text, index) in enumerate(said):
        if (where, text) == (cluster, recorded):
            found = result.verdicts[index]
            result.verdicts[index] = Replayed(
                found.at_s, found.cluster, found.verdict, True, found.peers
            )
            del said[place]
            return
    result.missing.append(msgspec.json.decode(recorded, type=Verdict))
