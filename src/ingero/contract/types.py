"""Who speaks, and in which state: identity of a node or rank, its lifecycle, the mode it judges itself in."""

import re
from dataclasses import dataclass
from enum import StrEnum

from ingero.contract.names import DEFAULT_CLUSTER
from ingero.errors import MalformedPush

_LINE_BREAK = re.compile(r"[\r\n]")


class NodeState(StrEnum):
    """Lifecycle of a node as agents report it; STALE never goes over the wire, because a stale agent does not push."""

    ACTIVE = "active"
    CALIBRATING = "calibrating"
    IDLE = "idle"
    STALE = "stale"


class DetectionMode(StrEnum):
    """Which threshold an agent trusts right now, best first."""

    FLEET = "fleet"
    FLEET_CACHED = "fleet-cached"
    LOCAL_CACHED = "local-cached"
    LOCAL_BASELINE = "local-baseline"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Who speaks. A node may run several ranks: `rank` is None for the node's own resource."""

    node: str
    cluster: str = DEFAULT_CLUSTER
    job: str | None = None
    rank: int | None = None
    local_rank: int | None = None
    world_size: int | None = None
    role: str | None = None
    provider: str | None = None
    gpu_model: str | None = None

    def __post_init__(self) -> None:
        for name in ("node", "cluster", "job", "role"):
            value = getattr(self, name)
            if value is not None and _LINE_BREAK.search(value):
                raise MalformedPush(f"{name} {value!r} contains a line break")
        if not self.node.strip():
            raise MalformedPush("the node id is empty")
