"""The signals that agents push, Fleet's questions about slow ranks, and the agents' answers.

The book is not a part of the verdict engine, so a replay of recorded inputs gives the engine's
verdicts. It adds the best answer to a verdict when the verdict is shown, like a silence.
"""

import math
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from types import MappingProxyType
from typing import Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from ingero.contract import names
from ingero.contract.causes import (
    Ask,
    CauseKind,
    Finding,
    PeerValue,
    Signal,
    decode_signals,
    encode_asks,
)
from ingero.contract.otlp.values import MetricsRequest
from ingero.contract.push.decode import problem_with_id
from ingero.contract.verdict import CauseClass, Verdict, VerdictState
from ingero.core.causes.answer import summarise
from ingero.core.causes.next_steps import NEXT_STEPS
from ingero.core.causes.node_network import NETWORK_SIGNALS, RankNetwork, find_slow_node
from ingero.core.causes.signal_rules import GPU_SIGNALS
from ingero.core.places.links import LinkPlace

MAX_RANKS: Final = 65_536  # whose signals are kept; the oldest are dropped
MAX_EPISODES: Final = 1024  # that are asked about
MAX_MODEL: Final = 64  # characters of the name of a GPU
MAX_PEERS: Final = 512  # whose signals make a median: those that are known for longest
MAX_NODES: Final = 4096  # of a job whose networks are compared
LOOK_S: Final = 5.0  # between two looks at the networks of all nodes of a job
MAX_SHOWN: Final = 16  # ranks of a node that are compared at once
FRESH_S: Final = 30.0  # signals are older when an agent stopped
ASKED_S: Final = 30.0  # then an ask is given up and a new one may follow
AGAIN_S: Final = 20.0  # after "unknown", before the next ask
MAX_ASKS: Final = 5  # of an episode
MAX_NEW: Final = 16  # asks that are made in one tick, each of which compares many ranks
KEPT_S: Final = 120.0  # what is known about an episode after its end
UNKNOWN_TEXT: Final = "unknown: nothing that was looked at sets this rank apart"
_ASKED: Final = frozenset(
    {VerdictState.SUSPECT, VerdictState.STRAGGLER, VerdictState.LATE, VerdictState.NOT_SURE}
)
_ORDER: Final = tuple(Signal)
_PLACES: Final = {signal: at for at, signal in enumerate(_ORDER)}
_OF_GPUS: Final = np.array([signal in GPU_SIGNALS for signal in _ORDER])
RankKey = tuple[str, str, str | None, int | None]  # cluster, node, job, rank
EpisodeKey = tuple[str, str]  # cluster, episode


@dataclass(slots=True)
class _Rank:
    values: NDArray[np.float32] = field(
        default_factory=lambda: np.full(len(_ORDER), math.nan, np.float32)
    )
    at_s: float = -math.inf
    step_ms: float | None = None
    gpu_model: str = ""

    def known(self, signals: Iterable[Signal]) -> dict[Signal, float]:
        """Return those of the given signals that were sent."""
        values = {one: float(self.values[_PLACES[one]]) for one in signals}
        return {one: value for one, value in values.items() if not math.isnan(value)}


@dataclass(slots=True)
class _Episode:
    """What was asked about an episode, and the best answer so far."""

    node: str
    ask: Ask
    asked_s: float
    seen_s: float
    is_open: bool = True  # the current ask waits for its answer
    answered_s: float = -math.inf
    finding: Finding | None = None


@dataclass(slots=True)
class _Network:
    """The node whose network slows the links of a whole job, once it is found."""

    place: LinkPlace | None  # of the slow link, where it is known
    seen_s: float
    looked_s: float = -math.inf
    cause: str = ""
    link: str = ""


@dataclass(slots=True)
class CauseCounters:
    """What was received, asked and answered."""

    signals: int = 0
    asks: int = 0
    findings: Counter[CauseKind] = field(default_factory=Counter)
    refused: int = 0  # findings that nobody asked for
    dropped_ranks: int = 0


class CauseBook:
    """The signals of all ranks, and the asks and answers about slow ones.

    `texts` holds the asks that replies to a node carry, by cluster and node.
    """

    def __init__(self) -> None:
        self.texts: dict[tuple[str, str], str] = {}
        self.counters = CauseCounters()
        self._ranks: OrderedDict[RankKey, _Rank] = OrderedDict()
        self._jobs: dict[tuple[str, str | None], dict[RankKey, _Rank]] = {}
        self._episodes: OrderedDict[EpisodeKey, _Episode] = OrderedDict()
        self._networks: dict[EpisodeKey, _Network] = {}
        self._fresh: set[EpisodeKey] = set()
        self._new = 0  # asks of this tick

    def take(self, request: MetricsRequest, cluster: str, now_s: float) -> None:
        """Take the signals and answers of one push."""
        for found in decode_signals(request):
            node, job = found.resource.get(names.NODE_ID), found.resource.get(names.JOB_ID)
            job = None if job is None else str(job)
            if not isinstance(node, str) or problem_with_id(node) or problem_with_id(job or "-"):
                continue
            for finding in found.findings:
                self._answer(cluster, node, finding, now_s)
            if found.signals or found.step_ms is not None:
                kept = self._rank((cluster, node, job, _whole(found.resource.get(names.RANK))))
                kept.step_ms = found.step_ms or kept.step_ms
                model = str(found.resource.get(names.GPU_MODEL) or kept.gpu_model)
                kept.gpu_model = model[:MAX_MODEL]
                if found.signals:
                    self.counters.signals += len(found.signals)
                    kept.at_s = now_s
                    kept.values[:] = [found.signals.get(one, math.nan) for one in _ORDER]

    def note_steps(self, keys: Sequence[RankKey], steps_ms: Sequence[float]) -> None:
        """Note how long the last step of each rank took; NaN means that this is not known."""
        for key, step_ms in zip(keys, steps_ms, strict=True):
            if step_ms > 0.0:
                self._rank(key).step_ms = step_ms

    def stored(
        self,
    ) -> tuple[
        dict[RankKey, _Rank],
        dict[EpisodeKey, _Episode],
        set[EpisodeKey],
        dict[EpisodeKey, _Network],
    ]:
        """Return what another replica needs to go on from here."""
        return dict(self._ranks), dict(self._episodes), self._fresh, self._networks

    def restore(
        self, ranks: dict[RankKey, _Rank], episodes: dict[EpisodeKey, _Episode],
        fresh: set[EpisodeKey], networks: dict[EpisodeKey, _Network],
    ) -> None:  # fmt: skip
        """Replace everything by what another replica stored, which may know other signals."""
        ranks = {key: rank for key, rank in ranks.items() if len(rank.values) == len(_ORDER)}
        self._ranks, self._episodes, self._fresh = OrderedDict(ranks), OrderedDict(episodes), fresh
        self._networks = networks
        self._jobs = {}
        for key, rank in self._ranks.items():
            self._jobs.setdefault((key[0], key[2]), {})[key] = rank

    def tick(
        self,
        verdicts: Iterable[tuple[str, Verdict]],
        now_s: float,
        links: Mapping[EpisodeKey, LinkPlace] = MappingProxyType({}),
    ) -> list[EpisodeKey]:
        """Decide what is asked now; return the episodes with a new cause."""
        by_node: dict[tuple[str, str], list[Ask]] = {}
        self._new = 0
        for cluster, verdict in verdicts:
            if verdict.node and verdict.state in _ASKED:
                ask = self._ask(cluster, verdict, now_s)
                if ask is not None:
                    by_node.setdefault((cluster, verdict.node), []).append(ask)
            elif verdict.cause_class is CauseClass.NETWORK and not verdict.node:
                self._look_at_network(
                    cluster, verdict, links.get((cluster, verdict.episode)), now_s
                )
        for kept in (self._episodes, self._networks):
            for key in [key for key, one in kept.items() if now_s - one.seen_s > KEPT_S]:
                del kept[key]
        # The receiver holds a reference to this dictionary, so it is changed in place.
        self.texts.clear()
        self.texts |= {key: text for key, asks in by_node.items() if (text := encode_asks(asks))}
        fresh, self._fresh = self._fresh, set()
        return sorted(fresh)

    def mark(self, cluster: str, verdict: Verdict) -> Verdict:
        """Return the verdict with its cause and the next step that follows from it."""
        network = self._networks.get((cluster, verdict.episode))
        if network is not None and network.cause and verdict.cause_class is CauseClass.NETWORK:
            return msgspec.structs.replace(
                verdict,
                cause=network.cause,
                link=verdict.link or network.link,
                next_step=NEXT_STEPS[CauseKind.NETWORK],
            )
        kept = self._episodes.get((cluster, verdict.episode))
        finding = kept.finding if kept else None
        if finding is None or verdict.cause:
            return verdict
        if finding.kind is CauseKind.UNKNOWN:
            text = f"{UNKNOWN_TEXT}; {finding.text}" if finding.text else UNKNOWN_TEXT
            return msgspec.structs.replace(verdict, cause=text)
        return msgspec.structs.replace(
            verdict, cause=finding.text, next_step=NEXT_STEPS[finding.kind]
        )

    def _look_at_network(
        self, cluster: str, verdict: Verdict, place: LinkPlace | None, now_s: float
    ) -> None:
        """Find the node that slows a job's links, and keep it until another link is slow.

        Counters are calm again before the episode is over, so the finding outlives them.
        """
        key = (cluster, verdict.episode)
        kept = self._networks.get(key)
        if kept is None or kept.place != place:
            if kept is None and len(self._networks) >= MAX_EPISODES:
                return
            kept = self._networks[key] = _Network(place, now_s)
        kept.seen_s = now_s
        if kept.cause or now_s - kept.looked_s < LOOK_S:
            return
        kept.looked_s = now_s
        slow = find_slow_node(self._rank_networks(cluster, verdict.job, now_s), place)
        if slow is not None:
            kept.cause, kept.link = f"node {slow.node}: {slow.text}", f"node {slow.node}'s NIC"
            self._fresh.add(key)

    def _rank_networks(self, cluster: str, job: str | None, now_s: float) -> list[RankNetwork]:
        """Return what is known of the network of each rank of a job, on MAX_NODES nodes."""
        found: list[RankNetwork] = []
        nodes: set[str] = set()
        for key, one in self._jobs.get((cluster, job), {}).items():
            if now_s - one.at_s <= FRESH_S and (key[1] in nodes or len(nodes) < MAX_NODES):
                nodes.add(key[1])
                found.append(RankNetwork(key[1], key[3], one.known(NETWORK_SIGNALS)))
        return found

    def kind_of(self, cluster: str, episode: str) -> CauseKind | None:
        """Return the kind of cause of an episode; None before an answer."""
        kept = self._episodes.get((cluster, episode))
        return kept.finding.kind if kept and kept.finding else None

    def beside_peers(
        self, cluster: str, node: str, now_s: float
    ) -> list[tuple[int | None, str, float, PeerValue]]:
        """Return (rank, signal, own value, peers) of the ranks of a node, while they are fresh."""
        fresh = (
            (key, one)
            for key, one in self._ranks.items()
            if key[:2] == (cluster, node) and now_s - one.at_s <= FRESH_S
        )
        found = []
        for key, one in islice(fresh, MAX_SHOWN):
            peers = self._peers(key, now_s)
            for signal, value in zip(_ORDER, one.values.tolist(), strict=True):
                if signal in peers and not math.isnan(value):
                    found.append((key[3], str(signal), value, peers[signal]))
        return found

    def _ask(self, cluster: str, verdict: Verdict, now_s: float) -> Ask | None:
        """Return the open ask about an episode, a new one where it is due, or None."""
        key = (cluster, verdict.episode)
        kept = self._episodes.get(key)
        if kept is None:
            if len(self._episodes) >= MAX_EPISODES or self._new >= MAX_NEW:
                return None
            ask = self._new_ask(cluster, verdict, 1, now_s)
            self._episodes[key] = _Episode(verdict.node, ask, now_s, now_s)
            return ask
        kept.seen_s = now_s
        if kept.is_open and now_s - kept.asked_s <= ASKED_S:
            return kept.ask
        is_found = kept.finding is not None and kept.finding.kind is not CauseKind.UNKNOWN
        is_early = now_s - kept.answered_s < AGAIN_S or self._new >= MAX_NEW
        if is_found or kept.ask.number >= MAX_ASKS or is_early:
            return None
        kept.ask = self._new_ask(cluster, verdict, kept.ask.number + 1, now_s)
        kept.asked_s, kept.is_open = now_s, True
        return kept.ask

    def _new_ask(self, cluster: str, verdict: Verdict, number: int, now_s: float) -> Ask:
        self.counters.asks += 1
        self._new += 1
        key = (cluster, verdict.node, verdict.job, verdict.rank)
        rank = self._ranks.get(key)
        return Ask(
            episode=verdict.episode,
            number=number,
            job=verdict.job,
            rank=verdict.rank,
            cause_class=str(verdict.cause_class),
            late=_late(verdict),
            step_ms=None if rank is None else rank.step_ms,
            period=verdict.period,
            peers=self._peers(key, now_s),
        )

    def _peers(self, key: RankKey, now_s: float) -> dict[str, PeerValue]:
        """Return median and spread of each signal over the other ranks of a job.

        Signals of GPUs are compared among GPUs of the same model.
        """
        job = self._jobs.get((key[0], key[2]), {})
        fresh = (one for at, one in job.items() if at != key and now_s - one.at_s <= FRESH_S)
        others = list(islice(fresh, MAX_PEERS))
        if not others:
            return {}
        mine = self._ranks[key].gpu_model if key in self._ranks else ""
        is_other = np.array([bool(mine and one.gpu_model not in ("", mine)) for one in others])
        found, columns = {}, np.stack([one.values for one in others]).T
        columns[_OF_GPUS[:, None] & is_other] = math.nan
        for signal, column in zip(_ORDER, columns, strict=True):
            known = column[~np.isnan(column)].tolist()
            if known:
                value = summarise(known)
                found[str(signal)] = PeerValue(
                    float(f"{value.median:.5g}"), float(f"{value.spread:.3g}"), value.count
                )
        return found

    def _answer(self, cluster: str, node: str, finding: Finding, now_s: float) -> None:
        """Take an answer from the node that was asked, to the ask that is open."""
        key = (cluster, finding.episode)
        kept = self._episodes.get(key)
        is_asked = kept is not None and kept.node == node and kept.ask.number == finding.number
        if kept is None or not is_asked:
            self.counters.refused += 1
            return
        self.counters.findings[finding.kind] += 1
        kept.is_open, kept.answered_s = False, now_s
        before = kept.finding
        if finding.kind is CauseKind.UNKNOWN and before is not None:
            return  # what was found before stays
        is_better = before is None or before.kind is CauseKind.UNKNOWN or _is_more(finding, before)
        if is_better and finding != before:
            kept.finding = finding
            self._fresh.add(key)

    def _rank(self, key: RankKey) -> _Rank:
        found = self._ranks.get(key)
        if found is None:
            found = self._ranks[key] = _Rank()
            self._jobs.setdefault((key[0], key[2]), {})[key] = found
            while len(self._ranks) > MAX_RANKS:
                self.counters.dropped_ranks += 1
                self._forget(next(iter(self._ranks)))
        else:
            self._ranks.move_to_end(key)
        return found

    def _forget(self, key: RankKey) -> None:
        del self._ranks[key]
        job = (key[0], key[2])
        del self._jobs[job][key]
        if not self._jobs[job]:
            del self._jobs[job]


def _late(verdict: Verdict) -> float | None:
    """Return the share of the time that a rank is behind: the job's loss, else its own excess."""
    if verdict.loss is not None and verdict.loss > 0.01:
        return round(verdict.loss, 4)
    if verdict.excess is not None and verdict.excess > 0:
        excess = verdict.excess / (verdict.period or 1)  # a stall adds to one step of its period
        return round(excess / (1.0 + excess), 4)
    return None


def _is_more(one: Finding, other: Finding) -> bool:
    return (one.explains or 0.0) > (other.explains or 0.0)


def _whole(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
