"""The extension of a Fleet configuration that enrols nodes."""

from dataclasses import dataclass
from pathlib import Path

from ingero.core.setting import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class EnrolmentExtensionConfig:
    """Enrolment of nodes with join codes, on the listener of the threshold API."""

    dir: Path | None = setting(
        None,
        help="Folder with the authority, the join codes and the enrolled nodes, which "
        "`ingero fleet init` makes; without it no node can join. Replicas share it.",
    )
