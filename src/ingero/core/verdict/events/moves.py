"""Slowness that moves from rank to rank with the work: a hot expert, uneven data.

One rank recovers as another becomes slow, again and again. From the third rank on this is one
event, and no node is blamed for it.
"""

from dataclasses import dataclass, field

HANDOVER_S = 30.0  # between the end of one slow period and the beginning of the next
RANKS = 3  # that were slow in turn: one failing node can follow another by chance
LONGER = 2.0  # a rank slow for this many times longer than those before does not move on
KEPT_S = 600.0  # an event ends when the slowness has not moved for this long
MAX_KEPT = 16  # slow periods kept per job


@dataclass(slots=True)
class Period:
    """One slow period of a member; `turn` counts how often it was handed over before."""

    member: int
    began_s: float
    ended_s: float | None = None
    turn: int = 1


@dataclass(slots=True)
class Moves:
    """Slow periods of all jobs, by the row of the job, the oldest first."""

    periods: dict[int, list[Period]] = field(default_factory=dict)

    def begin(self, job: int, member: int, began_s: float) -> None:
        """Note that a member became slow."""
        periods = self.periods.setdefault(job, [])
        before = [
            period.turn
            for period in periods
            if period.member != member
            and period.ended_s is not None
            and abs(began_s - period.ended_s) <= HANDOVER_S
        ]
        periods.append(Period(member, began_s, turn=1 + max(before, default=0)))
        del periods[:-MAX_KEPT]

    def end(self, job: int, member: int, ended_s: float) -> None:
        """Note that a member is not slow any more."""
        for period in self.periods.get(job, []):
            if period.member == member and period.ended_s is None:
                period.ended_s = ended_s

    def going_on(self, job: int) -> list[int]:
        """Return the members of a job whose slow periods are not over."""
        return [p.member for p in self.periods.get(job, []) if p.ended_s is None]

    def is_moving(self, job: int, now_s: float) -> bool:
        """Tell whether slowness moves with the work of a job."""
        return any(
            period.turn >= RANKS and (period.ended_s is None or now_s - period.ended_s < KEPT_S)
            for period in self.periods.get(job, [])
        )

    def is_carried(self, job: int, member: int, now_s: float) -> bool:
        """Tell whether a member is slow only because the work moved to it."""
        periods = self.periods.get(job, [])
        mine = next((p for p in reversed(periods) if p.member == member), None)
        if mine is None or mine.turn < RANKS:
            return False
        lengths = [p.ended_s - p.began_s for p in periods if p.ended_s is not None]
        return now_s - mine.began_s <= LONGER * max(lengths, default=0.0) + HANDOVER_S

    def ranks_in_turn(self, job: int) -> list[int]:
        """Return the members that were slow in turn, the latest last."""
        return [period.member for period in self.periods.get(job, [])]

    def forget(self, now_s: float) -> None:
        """Drop jobs whose last slow period is long over."""
        for job, periods in list(self.periods.items()):
            last = periods[-1].ended_s
            if last is not None and now_s - last > KEPT_S:
                del self.periods[job]
