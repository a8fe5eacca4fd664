"""A silence: an operator suspends alerts about a node or a job; measurements continue."""

from typing import Annotated

import msgspec

MAX_FOR_S = 30 * 86400.0
# "$" would let a line end pass, and "\Z" is no pattern for readers of the schema in JavaScript
_ONE_LINE = r"^[^\x00-\x1f\x7f]+(?![\s\S])"
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256, pattern=_ONE_LINE)]
Reason = Annotated[str, msgspec.Meta(min_length=1, max_length=500, pattern=_ONE_LINE)]


class SilenceRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an operator asks for; without a cluster the silence holds in all clusters.

    A target that Fleet has never seen is refused, unless with `force`.
    """

    target: Name
    for_s: Annotated[float, msgspec.Meta(gt=0, le=MAX_FOR_S)]
    why: Reason
    cluster: Name | None = None
    force: bool = False


class LiftRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The node or job whose silences end now."""

    target: Name
    cluster: Name | None = None


class Silence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One silence of a node or job, named by its id in `target`; times are in Unix seconds."""

    target: Name
    cluster: Name | None = None
    since: float
    until: float
    why: Reason

    def covers(self, cluster: str, node: str, job: str | None) -> bool:
        """Return whether the silence holds for this node, or for the job that runs on it."""
        return self.cluster in (None, cluster) and self.target in (node, job)
