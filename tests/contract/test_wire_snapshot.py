"""F104: names that other programs rely on stay.

Names may be added. To remove or rename one, change the snapshot on purpose.
"""

import json
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec

from ingero.contract import api_paths, names
from ingero.contract.push.decode import Reject
from ingero.contract.threshold import Delivery
from ingero.contract.types import DetectionMode, NodeState
from ingero.contract.verdict import CauseClass, Verdict, VerdictState

SNAPSHOT = Path(__file__).with_name("wire_snapshot.json")


def surface() -> dict[str, Any]:
    """Return every name on the wire as the code has it."""
    return {
        "names": constants(names),
        "paths": constants(api_paths),
        "verdict_fields": sorted(field.encode_name for field in msgspec.structs.fields(Verdict)),
        "enums": {
            kind.__name__: sorted(str(member.value) for member in kind)
            for kind in (NodeState, DetectionMode, VerdictState, CauseClass, Reject, Delivery)
        },
    }


def constants(module: ModuleType) -> dict[str, str]:
    return {
        key: value
        for key, value in vars(module).items()
        if key.isupper() and isinstance(value, str)
    }


def test_nothing_on_the_wire_was_removed_or_renamed() -> None:
    recorded, now = json.loads(SNAPSHOT.read_text()), surface()
    for part in ("names", "paths"):
        gone = {k: value for k, value in recorded[part].items() if now[part].get(k) != value}
        assert gone == {}
    assert set(recorded["verdict_fields"]) <= set(now["verdict_fields"])
    for kind, members in recorded["enums"].items():
        assert set(members) <= set(now["enums"][kind]), kind


def test_snapshot_is_of_this_contract() -> None:
    """New names are recorded in the commit that adds them to Fleet's replies and pushes."""
    recorded = json.loads(SNAPSHOT.read_text())
    for key in (
        "THRESHOLD_HEADER",
        "QUORUM_HEADER",
        "HEALTH_SCORE",
        "NODE_ID",
        "CLUSTER_ID",
        "NODE_STATE",
    ):
        assert recorded["names"][key] == getattr(names, key)
