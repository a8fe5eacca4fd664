"""A Fleet on a hand-driven clock, fed with a job of eight ranks of which one becomes slow."""

from collections.abc import Iterable

import numpy as np
from tests.support.verdict_pushes import START_S, own_time_push

from ingero.fleet.app import FleetService

SLOW_FROM, SLOW_TO = 120, 200  # seconds in which n5 is slow


class EpisodeWorld:
    """Feeds a service second by second; `at_s` is the Unix time that the service sees."""

    def __init__(
        self,
        service: FleetService,
        slow: str = "n5",
        cluster: str = "c",
        start_s: float = START_S,
    ) -> None:
        self.service, self.slow, self.cluster, self.second = service, slow, cluster, 0
        self._start_s = start_s
        self._rng = np.random.default_rng(1)
        # The service adds the difference of its two clocks to what it is given.
        self._base_s = start_s - service.unix_offset_s

    @property
    def at_s(self) -> float:
        return self._start_s + self.second

    def run(self, seconds: int) -> "EpisodeWorld":
        for _ in range(seconds):
            now_s = self._base_s + self.second
            for rank in range(8):
                is_slow = f"n{rank}" == self.slow and SLOW_FROM <= self.second < SLOW_TO
                own = 500 * (1.1 if is_slow else 1.0) * float(np.exp(self._rng.normal(0, 0.005)))
                request = own_time_push(f"n{rank}", rank, self.second, own)
                self.service.processor.on_measurements(request, self.cluster, now_s, None)
            self.service.tick(now_s)
            self.second += 1
        return self

    def states(self) -> Iterable[str]:
        """The states of the latest episode, in order."""
        *_, episode = self.service.episodes.episodes.values()
        return [str(moment.verdict.state) for moment in episode.verdicts]
