"""What a process must be allowed to read of others: stacks, mappings, open files.

Without CAP_SYS_PTRACE this works for processes of the same user only.
"""

import threading
from typing import Final, Protocol

from ingero.agent.causes.look import LONGEST, Subject, look, not_seen
from ingero.agent.engines.sight import EngineSight, OwnEngineSight
from ingero.agent.processes.discover import user_of
from ingero.agent.processes.info import pod_of
from ingero.core.causes.ranking import Difference
from ingero.errors import Unavailable

BEGIN_S: Final = 10.0  # to find interpreters and threads before a look


class Sight(EngineSight, Protocol):
    """Examines processes of this machine; `problem` says what it cannot see, and why."""

    @property
    def problem(self) -> str: ...

    def look(
        self, subject: Subject, stop: threading.Event, seconds: float
    ) -> list[Difference] | None: ...

    def name_pod(self, pid: int) -> str: ...


class OwnSight(OwnEngineSight):
    """Examines processes with the rights of this process."""

    def __init__(self, problem: str = "") -> None:
        super().__init__()
        self.problem = problem

    def look(
        self, subject: Subject, stop: threading.Event, seconds: float
    ) -> list[Difference] | None:
        """Return what sets a rank apart; None when it is gone."""
        longest_s = LONGEST * seconds + BEGIN_S
        try:
            uid = user_of(subject.late.pid)
            return self.patience.call(uid, lambda: look(subject, stop, seconds), longest_s)[0]
        except Unavailable as error:
            return [not_seen(str(error))]

    def name_pod(self, pid: int) -> str:
        """Return the pod that a process runs in; empty where it is not known."""
        return pod_of(pid)
