"""Roles of the ranks of a live job, found from the communicators they use.

Only ranks that do the same work are compared. Ranks that send to each other are different stages of
a pipeline; ranks of one stage are connected by communicators in which nobody sends to anybody. All
ranks of a job must be known for that, so Fleet finds roles, and not the agents, which see one node
each. Exchanges in which everybody sends to everybody, and rings in which everybody passes on what
it receives, connect no stages. Further, ranks with other operations, widths or sizes have another
role.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import count, islice
from typing import Final

from ingero.contract.collective import POINT_TO_POINT_OPS, CollectiveRecord

STEPS: Final = 3  # of a member, before its communicators are taken as known
LIGHT_BYTES: Final = 1 << 16  # of flags, losses and norms, which any rank may exchange
MAX_KINDS: Final = 512  # of a member; beyond that, what it does cannot tell it from others

Kind = tuple[str, int]  # operation and width
Place = tuple[int, int]  # communicator, and rank in it


@dataclass(slots=True)
class _Seen:
    """What one member was seen to do."""

    steps: set[int] = field(default_factory=set)
    places: set[Place] = field(default_factory=set)
    sends: set[tuple[int, int, int]] = field(default_factory=set)  # communicator, from, to
    sizes: dict[Kind, dict[int, set[int]]] = field(default_factory=dict)  # by kind and step


class LiveRoles:
    """What the members of one job do. Members are numbered as the caller likes."""

    def __init__(self) -> None:
        self._seen: dict[int, _Seen] = {}
        self._is_new = False
        self._roles: dict[int, str] = {}  # of members, as they were found last

    def is_known(self, member: int) -> bool:
        """Return whether enough is known about a member."""
        seen = self._seen.get(member)
        return seen is not None and len(seen.steps) >= STEPS

    def take(self, member: int, records: Iterable[CollectiveRecord]) -> None:
        """Take collectives of whole steps; a communicator that is new starts a member over."""
        seen = self._seen.setdefault(member, _Seen())
        fresh = [each for each in records if each.step is not None]
        if len(seen.steps) >= STEPS:
            if all((each.comm, each.rank) in seen.places for each in fresh):
                return
            seen = self._seen[member] = _Seen()
        for record in fresh:
            _note(seen, record)
        self._is_new = True

    def forget(self, member: int) -> None:
        """Forget a member that is gone."""
        self._is_new |= self._seen.pop(member, None) is not None
        self._roles.pop(member, None)

    def find(self, ranks: Mapping[int, int], world_size: int) -> dict[int, str] | None:
        """Return the role of each member, when all are known and something changed since.

        `ranks` has the rank of each member. Roles are named by the order of their lowest ranks, and
        keep their names when further members become known; a job in which all do the same has one
        role without a name.
        """
        if not self._is_new or len(ranks) < world_size:
            return None
        known = [member for member in ranks if self.is_known(member)]
        if len(known) < len(ranks):
            return None
        self._is_new = False
        stages = _stages({member: self._seen[member] for member in known})
        varying = {kind for member in known for kind in _varying_kinds(self._seen[member])}
        keys = {
            member: (stages[member], _signature(self._seen[member], varying)) for member in known
        }
        groups: dict[object, list[int]] = {}
        for member in sorted(known, key=lambda member: ranks[member]):
            groups.setdefault(keys[member], []).append(member)
        if len(groups) == 1:
            self._roles = dict.fromkeys(known, "")
        else:
            kind = "stage" if len(set(stages.values())) > 1 else "group"
            self._roles = _name_groups(list(groups.values()), self._roles, kind)
        return dict(self._roles)


def _name_groups(groups: list[list[int]], before: Mapping[int, str], kind: str) -> dict[int, str]:
    """Return the name of each member's group: what most of its members were called before.

    Names that are new are numbered in the order of the groups.
    """
    names: dict[int, str] = {}
    votes = [
        (votes_of, -at, name)
        for at, group in enumerate(groups)
        for name, votes_of in Counter(before[each] for each in group if before.get(each)).items()
    ]
    for _, place, name in sorted(votes, reverse=True):
        if -place not in names and name not in names.values():
            names[-place] = name
    free = (name for number in count() if (name := f"{kind}{number}") not in names.values())
    unnamed = [at for at in range(len(groups)) if at not in names]
    names |= dict(zip(unnamed, list(islice(free, len(unnamed))), strict=True))
    return {member: names[at] for at, group in enumerate(groups) for member in group}


def _note(seen: _Seen, record: CollectiveRecord) -> None:
    if record.step is None or len(seen.places) + len(seen.sends) > MAX_KINDS:
        return
    seen.steps.add(record.step)
    seen.places.add((record.comm, record.rank))
    if record.op in POINT_TO_POINT_OPS:
        if record.peer is not None:
            ends = (record.rank, record.peer) if record.op == "Send" else (record.peer, record.rank)
            seen.sends.add((record.comm, *ends))
    elif record.size_bytes > LIGHT_BYTES:
        sizes = seen.sizes.setdefault((record.op, record.nranks), {})
        sizes.setdefault(record.step, set()).add(record.size_bytes)


def _varying_kinds(seen: _Seen) -> list[Kind]:
    """Return the kinds whose sizes change from step to step: they depend on the data."""
    return [
        kind
        for kind, by_step in seen.sizes.items()
        if len({frozenset(sizes) for sizes in by_step.values()}) > 1
    ]


def _signature(seen: _Seen, varying: set[Kind]) -> frozenset[tuple[Kind, frozenset[int]]]:
    return frozenset(
        (kind, frozenset() if kind in varying else frozenset().union(*by_step.values()))
        for kind, by_step in seen.sizes.items()
    )


def _stages(members: Mapping[int, _Seen]) -> dict[int, int]:
    """Return a number per member, equal for members of one stage."""
    at = {place: member for member, seen in members.items() for place in seen.places}
    comms: dict[int, set[int]] = {}
    for (comm, _), member in at.items():
        comms.setdefault(comm, set()).add(member)
    ends = [
        ((comm, source), (comm, target))
        for comm, sends in _sends_by_comm(members).items()
        if not is_exchange(sends)
        for source, target in sends
    ]
    edges = {(at[one], at[two]) for one, two in ends if one in at and two in at}
    # Who sends to somebody unknown may be in another stage than everybody else there.
    unknown = {comm for (comm, source), two in ends if (comm, source) not in at or two not in at}
    parent = {member: member for member in members}

    def root(member: int) -> int:
        while parent[member] != member:
            parent[member] = parent[parent[member]]
            member = parent[member]
        return member

    peers: dict[int, set[int]] = {member: set() for member in members}
    for source, target in edges:
        peers[source].add(target)
    for comm, group in comms.items():
        if comm not in unknown and all(peers[member].isdisjoint(group) for member in group):
            first, *others = sorted(group)
            for other in others:
                parent[root(other)] = root(first)
    if not ends:
        return dict.fromkeys(members, 0)
    return {member: root(member) for member in members}


def _sends_by_comm(members: Mapping[int, _Seen]) -> dict[int, set[tuple[int, int]]]:
    found: dict[int, set[tuple[int, int]]] = {}
    for seen in members.values():
        for comm, source, target in seen.sends:
            found.setdefault(comm, set()).add((source, target))
    return found


def is_exchange(sends: set[tuple[int, int]]) -> bool:
    """Return whether everybody sends to everybody, or passes on to one what comes from another.

    Between two ranks, only one that also sends to itself takes part in an exchange of all.
    """
    ranks = {rank for edge in sends for rank in edge}
    others = {edge for edge in sends if edge[0] != edge[1]}
    if len(ranks) == 2:
        return len(sends) > len(others)
    if len(others) == len(ranks) * (len(ranks) - 1):
        return True
    if any((target, source) in others for source, target in others):
        return False  # activations one way, gradients the other
    targets = dict(others)
    return len(others) == len(targets) == len(set(targets.values())) == len(ranks)
