"""What replicas decide from the log alone, so that all of them decide alike.

Who is alive, who tells others about verdicts, whose rules differ, and whose state does.
"""

from collections import Counter
from dataclasses import dataclass, field
from typing import Final

ALIVE_S: Final = 5.0  # a replica that has not been heard of for longer is gone
JUDGED_AFTER_S: Final = 3.0  # by then every replica has told its digest of a tick
KEPT_TICKS: Final = 64
MAX_REPLICAS: Final = 64
SNAPSHOT_EVERY_S: Final = 60.0
QUIET_S: Final = 10.0  # without a disagreement, before a state is trusted again
STUCK_S: Final = 20.0  # of disagreement: starting again from the last snapshot did not end it


@dataclass(frozen=True, slots=True)
class Peer:
    """A replica as it last described itself."""

    at_s: float
    rules: str
    is_ready: bool
    process: int = 0


@dataclass(slots=True)
class Agreement:
    """The replicas of one log; `name` is this one. Times are those of the log.

    `process` differs between processes of the same name, and is higher for one that began later.
    """

    name: str
    process: int = 0
    peers: dict[str, Peer] = field(default_factory=dict)
    sender_since_s: float | None = None  # since when this replica is the sender
    mismatches: int = 0
    disagreed_s: float = float("-inf")  # when any two replicas last differed
    namesake: Peer | None = None  # another process that uses the name of this one
    _disagreeing_since_s: float = float("-inf")
    _most: frozenset[str] = frozenset()  # the largest group that told the same digest, then
    _began_s: float = float("inf")  # when this process was first heard of
    _digests: dict[int, dict[str, bytes]] = field(default_factory=dict)  # by tick in milliseconds
    _judged_ms: int = 0

    def hear(
        self,
        author: str,
        rules: str,
        is_ready: bool,
        digests: dict[int, bytes],
        at_s: float,
        process: int = 0,
    ) -> None:
        """Take what a replica says about itself."""
        peer = Peer(at_s, rules, is_ready, process)
        if author == self.name and process == self.process:
            self._began_s = min(self._began_s, at_s)
        elif author == self.name and at_s > self._began_s:
            self.namesake = peer
        if self._is_intruder(author, peer):
            return
        if author not in self.peers and len(self.peers) >= MAX_REPLICAS:
            oldest = min(self.peers, key=lambda each: self.peers[each].at_s)
            del self.peers[oldest]
        self.peers[author] = peer
        for tick_ms, digest in digests.items():
            if tick_ms > self._judged_ms:
                self._digests.setdefault(tick_ms, {})[author] = digest
        while len(self._digests) > KEPT_TICKS:
            del self._digests[min(self._digests)]

    def _is_intruder(self, author: str, peer: Peer) -> bool:
        """Tell whether a process that is not ready uses the name of a replica that is."""
        known = self.peers.get(author)
        return (
            known is not None
            and known.process != peer.process
            and known.is_ready
            and not peer.is_ready
            and peer.at_s - known.at_s <= ALIVE_S
        )

    def gives_way_to_namesake(self, is_ready: bool, now_s: float) -> bool:
        """Tell whether another process of this name takes part instead: the first of the two."""
        other = self.namesake
        if other is None or now_s - other.at_s > ALIVE_S:
            return False
        return other.process < self.process if other.is_ready == is_ready else other.is_ready

    def alive(self, now_s: float) -> list[str]:
        """Return the replicas that take part, by name."""
        return sorted(
            name
            for name, peer in self.peers.items()
            if peer.is_ready and now_s - peer.at_s <= ALIVE_S
        )

    def settle_sender(self, now_s: float) -> None:
        """Note whether this replica is the sender: the first by name of those alive."""
        alive = self.alive(now_s)
        if not alive or alive[0] != self.name:
            self.sender_since_s = None
        elif self.sender_since_s is None:
            self.sender_since_s = now_s

    def may_send(self, made_s: float, now_s: float) -> bool:
        """Tell whether this replica sends what was decided at `made_s`.

        A new sender leaves what is recent to the one before it, which may be sending it just now.
        """
        since_s = self.sender_since_s
        return since_s is not None and (made_s >= since_s or now_s - made_s >= ALIVE_S)

    def conflict(self, rules: str, is_ready: bool, now_s: float) -> str:
        """Return the name of a replica with other rules that this one must give way to."""
        for name, peer in sorted(self.peers.items()):
            is_other = name != self.name and peer.is_ready and peer.rules != rules
            if is_other and now_s - peer.at_s <= ALIVE_S and (not is_ready or name < self.name):
                return name
        return ""

    def is_mistaken(self, now_s: float) -> bool:
        """Tell whether the state of this replica must be replaced.

        Among different digests of a tick only a strict majority may keep its state: without one,
        all start again from the same snapshot.
        """
        mistaken = False
        for tick_ms in sorted(self._digests):
            if tick_ms / 1e3 > now_s - JUDGED_AFTER_S:
                break
            told = self._digests.pop(tick_ms)
            self._judged_ms = tick_ms
            counts = Counter(told.values())
            if len(counts) < 2:
                continue
            if now_s - self.disagreed_s > QUIET_S:
                self._disagreeing_since_s = now_s
            self.disagreed_s = now_s
            best, most = counts.most_common(1)[0]
            self._most = frozenset(name for name, digest in told.items() if digest == best)
            own = told.get(self.name)
            mistaken |= own is not None and (own != best or 2 * most <= len(told))
        if mistaken:
            self.mismatches += 1
        return mistaken

    def keeps_snapshot(self, now_s: float, kept_s: float) -> bool:
        """Tell whether this replica stores its state now, for others to start from.

        Nobody does so soon after a disagreement. Where that does not end, the last snapshot does
        not help; then all start from the state that most of them have.
        """
        alive, every_s = self.alive(now_s), SNAPSHOT_EVERY_S
        if now_s - self.disagreed_s < QUIET_S:
            if now_s - self._disagreeing_since_s < STUCK_S:
                return False
            alive, every_s = [name for name in alive if name in self._most], STUCK_S
        return now_s - kept_s >= every_s and alive[:1] == [self.name]

    def forget_digests(self, until_s: float) -> None:
        """Judge no tick before `until_s`: the state was replaced."""
        self._judged_ms = max(self._judged_ms, int(until_s * 1e3))
        self._digests = {ms: told for ms, told in self._digests.items() if ms > self._judged_ms}
