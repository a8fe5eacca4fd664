"""The identity of a node or rank, the state of a node, and its detection mode."""

import re
from dataclasses import dataclass
from enum import StrEnum

from ingero.contract.names import DEFAULT_CLUSTER
from ingero.errors import MalformedPush

_LINE_BREAK = re.compile(r"[\r\n]")


class NodeState(StrEnum):
    """The state of a node as its agent reports it.

    STALE is never sent: a stale agent does not push.
    """

    ACTIVE = "active"
    CALIBRATING = "calibrating"
    IDLE = "idle"
    STALE = "stale"


class DetectionMode(StrEnum):
    """Which threshold an agent uses at the moment, best first."""

    FLEET = "fleet"
    FLEET_CACHED = "fleet-cached"
    LOCAL_CACHED = "local-cached"
    LOCAL_BASELINE = "local-baseline"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """A node, or one of its ranks; `rank` is None for the node itself."""

    node: str
    cluster: str = DEFAULT_CLUSTER
    job: str | None = None
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    role: str | None = None
    provider: str | None = None
    gpu_model: str | None = None
    gpu_uuid: str | None = None
    pod: str | None = None
    labels: tuple[tuple[str, str], ...] = ()  # such as ("rack", "r7")

    def __post_init__(self) -> None:
        for name in ("node", "cluster", "job", "role"):
            value = getattr(self, name)
            if value is not None and _LINE_BREAK.search(value):
                raise MalformedPush(f"{name} {value!r} contains a line break")
        if not self.node.strip():
            raise MalformedPush("the node id is empty")
