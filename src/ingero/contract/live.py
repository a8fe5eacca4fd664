"""What Fleet streams to its page and to terminals: a snapshot of each cluster, then its changes.

A stream is NDJSON: one message per line, told apart by `type`. It begins with a `tick` and a
`snapshot` of each cluster. Then, once a second, follow a `delta` per cluster that changed and a
`tick`, which comes even where nothing changed. A client that reads too slowly gets a new snapshot.
A value that Fleet does not have is null. Times are Unix seconds of Fleet's clock.
"""

from typing import Final, TypeAlias

import msgspec
from msgspec import UNSET, UnsetType

from ingero.contract.fleet_api import ClusterSummary, RankCounts
from ingero.contract.silence import Silence
from ingero.contract.verdict import Verdict

LIVE_TYPE: Final = "application/x-ndjson"


class Headline(msgspec.Struct, frozen=True, kw_only=True):
    """One sentence about a cluster, with a name in it where somebody is slow.

    `kind` is slow, fleet_event, not_sure, silenced, suspect or calm. `episode` and `since` belong
    to the verdict that the sentence is about.
    """

    kind: str
    text: str
    episode: str | None = None
    since: float | None = None
    next_step: str = ""


class LiveSummary(ClusterSummary, frozen=True, kw_only=True):
    """A cluster in figures; `quorum_reason` says why there is no quorum."""

    headline: Headline
    quorum_reason: str | None
    ranks: RankCounts


class LiveNode(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One node, as an array of values in this order.

    `state` is silent where the node stopped pushing, and `seen` is when its last push arrived.
    `clock_offset_s` is how far its clock is ahead of Fleet's, less up to a second; it is known from
    the first push on that is watched.
    """

    node_id: str
    score: float | None
    state: str
    straggler: bool
    seen: float
    ranks: int
    job_id: str | None = None
    gpu_model: str | None = None
    mode: str | None = None
    version: str | None = None
    lost_records: int | None = None
    clock_offset_s: float | None = None
    ready_s: int | None = None  # how long a calibrating node will take, as of `seen`


class LiveJob(msgspec.Struct, frozen=True, kw_only=True):
    """One job whose ranks are measured."""

    job_id: str
    ranks: int
    nodes: int
    world_size: int | None
    slow: int  # ranks with an open verdict that they are slow


class StateChange(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One change of an episode: when, to which state, and what was known then."""

    at: float
    state: str
    evidence: str = ""


class LiveEpisode(msgspec.Struct, frozen=True, kw_only=True):
    """An episode of the last 24 hours; `until` is null while it is open.

    `cost_usd` is what the job has lost by it so far, as far as a price is known.
    """

    verdict: Verdict
    until: float | None
    changes: list[StateChange]
    cost_usd: float | None = None


class LiveSnapshot(msgspec.Struct, frozen=True, kw_only=True, tag="snapshot", tag_field="type"):
    """Everything about one cluster; it replaces what a client had."""

    cluster_id: str
    at: float
    summary: LiveSummary
    nodes: list[LiveNode]
    verdicts: list[Verdict]
    silences: list[Silence]
    jobs: list[LiveJob]
    episodes: list[LiveEpisode]


class LiveDelta(
    msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, tag="delta", tag_field="type"
):
    """What changed in one cluster.

    `nodes` and `episodes` replace those with the same id, `gone` names nodes that were dropped, and
    every other list replaces the whole list.
    """

    cluster_id: str
    at: float
    summary: LiveSummary | UnsetType = UNSET
    nodes: list[LiveNode] | UnsetType = UNSET
    gone: list[str] | UnsetType = UNSET
    verdicts: list[Verdict] | UnsetType = UNSET
    silences: list[Silence] | UnsetType = UNSET
    jobs: list[LiveJob] | UnsetType = UNSET
    episodes: list[LiveEpisode] | UnsetType = UNSET
    episodes_gone: list[str] | UnsetType = UNSET


class LiveRank(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """One rank of a job, as an array of values in this order.

    `own_ms` is the median of its last own times per step, `excess` how much that is above its
    baseline and its peers, `lateness_ms` how late it arrives at collectives, and `awaited` the
    share of a step that the job waits for it alone at one collective.
    """

    rank: int | None
    node_id: str
    role: str
    state: str  # healthy, suspect, straggler, recovering, or learning
    own_ms: float | None = None
    excess: float | None = None
    lateness_ms: float | None = None
    awaited: float | None = None


class LiveRanks(msgspec.Struct, frozen=True, kw_only=True, tag="ranks", tag_field="type"):
    """The ranks of the job that a stream asks for, once a second."""

    cluster_id: str
    job_id: str
    at: float
    ranks: list[LiveRank]


class LiveSteps(msgspec.Struct, frozen=True, kw_only=True, tag="steps", tag_field="type"):
    """Own times of the job that a stream asks for: one list of values per step, in rank order.

    A value is the percentage above the median of its step, null where the rank did not report it.
    `whole` replaces what a client had; later messages repeat the last steps, because some ranks
    report late. At most 1,024 of the `of` ranks are covered.
    """

    cluster_id: str
    job_id: str
    at: float
    whole: bool
    of: int
    ranks: list[int]
    steps: list[int]
    values: list[list[int | None]]


class LiveTick(msgspec.Struct, frozen=True, kw_only=True, tag="tick", tag_field="type"):
    """A second has passed. `clusters` are those that the stream covers; others are gone."""

    at: float
    version: str  # of Fleet
    clusters: list[str]


LiveMessage: TypeAlias = LiveSnapshot | LiveDelta | LiveRanks | LiveSteps | LiveTick
_DECODER: Final[msgspec.json.Decoder[LiveMessage]] = msgspec.json.Decoder(LiveMessage)
encode_message = msgspec.json.Encoder().encode


def decode_message(line: bytes | str) -> LiveMessage:
    """Decode one line of a stream; raise msgspec.DecodeError for anything else."""
    return _DECODER.decode(line)


def apply_delta(before: LiveSnapshot, delta: LiveDelta) -> LiveSnapshot:
    """Return the snapshot as it is after a delta, with nodes and episodes in order of their ids."""
    nodes = {node.node_id: node for node in before.nodes}
    episodes = {episode.verdict.episode: episode for episode in before.episodes}
    nodes |= {node.node_id: node for node in delta.nodes or ()}
    episodes |= {episode.verdict.episode: episode for episode in delta.episodes or ()}
    for node in delta.gone or ():
        nodes.pop(node, None)
    for gone in delta.episodes_gone or ():
        episodes.pop(gone, None)
    return LiveSnapshot(
        cluster_id=before.cluster_id,
        at=delta.at,
        summary=before.summary if delta.summary is UNSET else delta.summary,
        nodes=[nodes[name] for name in sorted(nodes)],
        verdicts=before.verdicts if delta.verdicts is UNSET else delta.verdicts,
        silences=before.silences if delta.silences is UNSET else delta.silences,
        jobs=before.jobs if delta.jobs is UNSET else delta.jobs,
        episodes=[episodes[name] for name in sorted(episodes)],
    )


class Compared(msgspec.Struct, frozen=True, kw_only=True):
    """One signal of a node or rank beside the median of its peers.

    `distance` is the difference in spreads of the peers, null where they do not differ at all.
    """

    signal: str
    rank: int | None
    own: float
    median: float
    peers: int
    distance: float | None


class NodeAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """What sets a node apart from its peers, the largest difference first."""

    node_id: str
    compared: list[Compared]
