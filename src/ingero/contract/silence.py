"""A silence: an operator knows about a node or a job, so alerts about it rest for a while; measurements go on."""

from typing import Annotated

import msgspec

MAX_FOR_S = 30 * 86400.0
Name = Annotated[str, msgspec.Meta(min_length=1, max_length=256, pattern=r"^[^\x00-\x1f\x7f]+$")]
Reason = Annotated[str, msgspec.Meta(min_length=1, max_length=500, pattern=r"^[^\x00-\x1f\x7f]+$")]


class SilenceRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an operator asks for; without a cluster the target counts in all of them."""

    target: Name
    for_s: Annotated[float, msgspec.Meta(gt=0, le=MAX_FOR_S)]
    why: Reason
    cluster: Name | None = None


class LiftRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Whose silences end now."""

    target: Name
    cluster: Name | None = None


class Silence(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One silence; times are Unix seconds. `target` is the id of a node or of a job."""

    target: Name
    cluster: Name | None = None
    since: float
    until: float
    why: Reason

    def covers(self, cluster: str, node: str, job: str | None) -> bool:
        """Whether it is about this node, or about the job it works for."""
        return self.cluster in (None, cluster) and self.target in (node, job)
