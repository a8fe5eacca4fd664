"""What the part that pushes asks the recorder to look at, and the answers: one JSON line each."""

from typing import Final

import msgspec

from ingero.agent.causes.look import RankProcess
from ingero.agent.engines.sight import SeenEngines
from ingero.contract.causes import Ask, Signal
from ingero.core.causes.ranking import Difference

SOCKET_NAME: Final = "sight.sock"
MAX_REQUEST_BYTES: Final = 1 << 20
MAX_REPLY_BYTES: Final = 4 << 20


class Look(msgspec.Struct, tag="look"):
    """Look at a late rank and its peers; `gpus` is what their GPUs say, by pid."""

    ask: Ask
    late: RankProcess
    peers: list[RankProcess]
    gpus: dict[int, dict[Signal, float]]
    seconds: float


class FindEngines(msgspec.Struct, tag="engines"):
    """Look for processes that may be engines."""


class DescribeWaits(msgspec.Struct, tag="waits"):
    """Say where the workers of an engine are."""

    pid: int


class CountGpus(msgspec.Struct, tag="gpus"):
    """Count the processes of an engine that use a GPU."""

    pid: int


class NamePod(msgspec.Struct, tag="pod"):
    """Say in which pod a process runs."""

    pid: int


class Answer(msgspec.Struct):
    """The answer to each of them; `differences` is None where the rank is gone."""

    differences: list[Difference] | None = None
    engines: SeenEngines = SeenEngines()
    text: str = ""
    count: int = 0


Request = Look | FindEngines | DescribeWaits | CountGpus | NamePod
