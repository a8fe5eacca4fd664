"""Finds engines and examines their processes, with the right to read those of other users."""

from dataclasses import dataclass, field
from typing import Final, Protocol

from ingero.agent.engines.find import Candidate, EngineFinder
from ingero.agent.engines.workers import count_gpus, describe_waits
from ingero.agent.processes.discover import user_of
from ingero.agent.processes.patience import Patience
from ingero.errors import Unavailable

WAITS_S: Final = 5.0  # of a few processes, with their frames


@dataclass(frozen=True, slots=True)
class SeenEngines:
    """The processes that may be engines, and the servers whose ports may not be found."""

    candidates: list[Candidate] = field(default_factory=list)
    denied: frozenset[int] = frozenset()


class EngineSight(Protocol):
    """Sees engines. Every method blocks."""

    def find_engines(self) -> SeenEngines: ...

    def describe_waits(self, pid: int) -> str: ...

    def count_gpus(self, pid: int) -> int: ...


class OwnEngineSight:
    """Sees engines with the rights of this process; `patience` is for memory of others."""

    def __init__(self) -> None:
        self.patience = Patience()
        self._finder = EngineFinder()

    def find_engines(self) -> SeenEngines:
        """Return the processes that may be engines."""
        return SeenEngines(self._finder.find(), frozenset(self._finder.denied))

    def describe_waits(self, pid: int) -> str:
        """Return where the workers of an engine are, or that this cannot be read."""
        try:
            return self.patience.call(user_of(pid), lambda: describe_waits(pid), WAITS_S)[0]
        except Unavailable as error:
            return str(error)

    def count_gpus(self, pid: int) -> int:
        """Return how many processes of an engine use a GPU."""
        return count_gpus(pid)
