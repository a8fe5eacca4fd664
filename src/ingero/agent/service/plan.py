"""Which parts the agent of this node runs, and why it leaves others off."""

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import msgspec

from ingero.agent.host.privileges import CAPABILITIES
from ingero.config.ingero import CollectivesFrom, IngeroConfig
from ingero.storage.caller import SYSTEM_STATE
from ingero.storage.trace.path import default_path

RECORDER, PUSHER, API = "recorder", "pusher", "api"
SYSTEM_DATABASE: Final = SYSTEM_STATE / "ingero.db"
_DAC_READ_SEARCH, _FOWNER, _CHOWN, _SYS_ADMIN = 2, 3, 0, 21
# Beside the three of tracing: SYS_ADMIN for kernels before 6.6, the others for rings of the jobs of
# other users and for the group of the annotation socket. Units and charts grant only three.
RECORDER_CAPABILITIES: Final = (
    *(number for number, _ in CAPABILITIES.values()),
    _SYS_ADMIN,
    _DAC_READ_SEARCH,
    _FOWNER,
    _CHOWN,
)


class Order(msgspec.Struct, frozen=True):
    """What a part is started with."""

    part: str
    config: str | None
    database: str
    is_beside_recorder: bool = False  # rings of other users are read by the recorder alone


@dataclass(frozen=True, slots=True)
class PlannedPart:
    """A part of the agent; `off` says in a sentence why it does not run."""

    name: str
    off: str = ""
    capabilities: tuple[int, ...] = ()


def agent_database(config: IngeroConfig) -> Path:
    """Return where the agent records: `store.path`, else a system folder for root."""
    if config.store.path is not None:
        return config.store.path
    return SYSTEM_DATABASE if os.geteuid() == 0 else default_path()


def plan_parts(config: IngeroConfig) -> list[PlannedPart]:
    """Return every part of this node's agent, in the order in which they start."""
    recorder = (
        PlannedPart(RECORDER, capabilities=RECORDER_CAPABILITIES)
        if config.agent.record
        else PlannedPart(RECORDER, "agent.record is false")
    )
    pusher = PlannedPart(
        PUSHER,
        ""
        if config.fleet.endpoint
        else "no Fleet is configured; run `ingero join`, or set fleet.endpoint in ingero.yaml",
    )
    api = PlannedPart(
        API, "" if config.agent.api.listen else "agent.api.listen is not set, so no port is opened"
    )
    return [recorder, pusher, api]


def pusher_settings(config: IngeroConfig, order: Order) -> IngeroConfig:
    """Return the settings of the part that pushes.

    Without capabilities it cannot read the rings of other users. The recorder beside it can, and
    writes what they hold into the database.
    """
    signals = config.signals
    if order.is_beside_recorder and signals.collectives is CollectivesFrom.AUTO:
        signals = replace(signals, collectives=CollectivesFrom.DB)
    store = replace(config.store, path=Path(order.database))
    return replace(config, signals=signals, store=store)
