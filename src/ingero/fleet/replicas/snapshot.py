"""A snapshot of the shared state, from which a replica joins or starts again.

Engines are encoded as in the files of `verdict.state_dir`. What is read comes from outside: sizes
are bounded, and anything that does not fit raises ForeignFile before the state is touched.
"""

import zlib
from typing import Any, Final

import msgspec

from ingero.contract.episodes.episode import Episode
from ingero.contract.replicas.entries import LOG_VERSION
from ingero.contract.replicas.rows import name_check
from ingero.contract.silence import Silence
from ingero.contract.threshold import COLD_START, ServedThreshold
from ingero.core.alerts.decisions import OpenAlert
from ingero.core.alerts.queue import StoredQueue
from ingero.core.health.threshold import ClusterThreshold, ThresholdPolicy
from ingero.errors import ConfigError, ForeignFile
from ingero.fleet.episodes.state_codec import decode_any_state, decode_state, encode_state
from ingero.fleet.processor import Cluster
from ingero.fleet.replicas.shared import SharedState
from ingero.fleet.roster import Roster, StoredRoster

MAX_CONTENT_BYTES: Final = 1 << 30


class _StoredCluster(msgspec.Struct, frozen=True):
    name: str
    roster: StoredRoster
    threshold: ClusterThreshold
    served: ServedThreshold
    counts: dict[str, int]


class _StoredAlerts(msgspec.Struct, frozen=True):
    open: list[OpenAlert]
    queues: dict[str, StoredQueue]


class _Content(msgspec.Struct, frozen=True, kw_only=True):
    version: int
    at_s: float
    policy: ThresholdPolicy
    clusters: list[_StoredCluster]
    engines: dict[str, bytes]
    others: bytes  # causes, and judges of inference engines
    silences: list[Silence]
    episodes: list[Episode]
    alerts: _StoredAlerts | None
    owed: dict[int, bytes]
    batches: dict[str, int]


class DecodedSnapshot(msgspec.Struct, frozen=True):
    """A snapshot that was read and checked; `install` puts it in place of the state."""

    content: Any
    clusters: dict[str, Cluster]
    engines: dict[str, Any]
    others: tuple[Any, ...]


def encode_snapshot(shared: SharedState) -> bytes:
    """Return the state after a tick; nothing may change it meanwhile, so follow the log later."""
    verdicts, alerts = shared.judgement.verdicts, shared.judgement.alerts
    kept = None
    if alerts is not None:
        journal = alerts.stored()
        kept = _StoredAlerts(journal.open, journal.queues)
    content = _Content(
        version=LOG_VERSION,
        at_s=shared.at_s,
        policy=shared.processor.policy,
        clusters=[
            _StoredCluster(name, each.roster.stored(), each.threshold, each.served, each.counts)
            for name, each in shared.processor.clusters.items()
        ],
        engines={name: encode_state(each) for name, each in verdicts.clusters.items()},
        others=encode_state((verdicts.causes.stored(), verdicts.engines.stored())),
        silences=verdicts.silences.active(shared.at_s),
        episodes=list(shared.judgement.episodes.episodes.values()),
        alerts=kept,
        owed=shared.owed,
        batches=shared.batches,
    )
    return zlib.compress(msgspec.msgpack.encode(content), 1)


def decode_snapshot(data: bytes, max_nodes: int) -> DecodedSnapshot:
    """Read and check a snapshot, in any thread; raise ForeignFile."""
    unpacker = zlib.decompressobj()
    try:
        plain = unpacker.decompress(data, MAX_CONTENT_BYTES)
        if unpacker.unconsumed_tail:
            raise ForeignFile("the snapshot of the cluster log is too large")
        content = msgspec.msgpack.decode(plain, type=_Content)
        if content.version != LOG_VERSION:
            raise ForeignFile(f"the snapshot is of log version {content.version}")
        clusters = {each.name: _cluster(each, max_nodes) for each in content.clusters}
        engines = {name: decode_state(state) for name, state in content.engines.items()}
        causes, judges = decode_any_state(content.others)
        ranks, asked, fresh, networks = causes
        by_key = (ranks, asked, networks)
        if not (all(isinstance(each, dict) for each in by_key) and len(judges) == 3):
            raise ForeignFile("the snapshot of the cluster log is damaged: its causes")
    except (
        zlib.error, msgspec.DecodeError, ConfigError, ValueError, KeyError, TypeError,
    ) as error:  # fmt: skip
        raise ForeignFile(f"the snapshot of the cluster log is damaged: {error}") from None
    return DecodedSnapshot(content, clusters, engines, ((ranks, asked, fresh, networks), judges))


def install(decoded: DecodedSnapshot, shared: SharedState) -> None:
    """Replace the shared state; objects that others hold stay the same and get new content."""
    content, judgement = decoded.content, shared.judgement
    processor, verdicts = shared.processor, judgement.verdicts
    processor.clusters.clear()
    processor.clusters.update(decoded.clusters)
    processor.nodes = sum(len(each.roster.rows) for each in decoded.clusters.values())
    processor.policy = content.policy
    verdicts.clusters.clear()
    verdicts.clusters.update(decoded.engines)
    causes, judges = decoded.others
    verdicts.causes.restore(*causes)
    verdicts.engines.restore(judges)
    verdicts.silences.restore(content.silences)
    judgement.episodes.replace(content.episodes)
    if judgement.alerts is not None and content.alerts is not None:
        judgement.alerts.restore(content.alerts.open, content.alerts.queues)
    shared.owed = dict(content.owed)
    shared.batches = dict(content.batches)
    shared.at_s = shared.ticked_s = shared.kept_s = content.at_s
    shared.digests.clear()
    shared.checks.clear()
    for name, cluster in processor.clusters.items():
        checks = shared.checks_of(name)
        for node, row in cluster.roster.rows.items():
            checks[row] = name_check(node)


def _cluster(stored: _StoredCluster, max_nodes: int) -> Cluster:
    served = stored.served if stored.served.value else COLD_START
    roster = Roster.restored(stored.roster, max_nodes)
    return Cluster(stored.name, roster, stored.threshold, served, dict(stored.counts))
