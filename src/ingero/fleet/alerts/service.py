"""Tells the configured targets that episodes begin and end."""

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import msgspec

from ingero.config.fleet_alerts import (
    AlertmanagerConfig,
    AlertsConfig,
    AnyTarget,
    KubernetesConfig,
    PagerdutyConfig,
    WebhookConfig,
)
from ingero.contract.episodes.episode import AlertTold
from ingero.contract.verdict import Verdict
from ingero.core.alerts.alert import Message, MessageKind
from ingero.core.alerts.decisions import AlertDecisions, OpenAlert
from ingero.core.alerts.queue import AlertQueue, StoredQueue
from ingero.errors import ForeignFile, IngeroError, StoreError, TooLarge
from ingero.files import read_regular, replace_file
from ingero.fleet.alerts.chat import Chat
from ingero.fleet.alerts.kubernetes import Kubernetes
from ingero.fleet.alerts.post import Delivery
from ingero.fleet.alerts.targets import Alertmanager, Pagerduty, Target, Webhook
from ingero.stopping import end_tasks

REFRESH_S: Final = 60.0  # how often an Alertmanager hears again of what is open
MAX_JOURNAL_BYTES: Final = 64 << 20
JOURNAL: Final = "alerts.json"
_HELD_BACK: Final = {
    "silence": "it is silenced",
    "fleet_event": "many members are slow together, which is told instead",
}
log = logging.getLogger(__name__)


class AlertJournal(msgspec.Struct, kw_only=True):
    """What is kept over a restart: alerts that have begun, and the messages for each target."""

    open: list[OpenAlert] = []
    queues: dict[str, StoredQueue] = {}


def build_target(name: str, config: AnyTarget, public_url: str) -> Target:
    """Return a target by its settings; raise IngeroError where it cannot be built."""
    if isinstance(config, AlertmanagerConfig):
        return Alertmanager(config, public_url)
    if isinstance(config, PagerdutyConfig):
        return Pagerduty(config, public_url)
    if isinstance(config, WebhookConfig):
        return Webhook(config, name, public_url)
    if isinstance(config, KubernetesConfig):
        return Kubernetes(config, public_url)
    return Chat(config, public_url)


class AlertService:
    """Decides once a second and delivers in tasks of its own, one for each target.

    With a folder, a journal makes sure that each message is sent also when Fleet is restarted.
    `on_outcome` is told what became of each message, with the id of its episode.
    """

    on_outcome: Callable[[str, AlertTold], None] | None = None

    def __init__(self, config: AlertsConfig, state_dir: Path | None, now_s: float) -> None:
        self._path = None if state_dir is None else state_dir / JOURNAL
        kept = AlertJournal() if self._path is None else _read(self._path)
        for each in kept.open:
            each.unseen_since = now_s
        self.decisions = AlertDecisions(kept.open)
        self.queues = {
            name: AlertQueue(target.max_per_minute, kept.queues.get(name))
            for name, target in config.targets.items()
        }
        self._targets = {
            name: build_target(name, target, config.public_url)
            for name, target in config.targets.items()
        }
        # Among several replicas one sends what was decided at a time, and tells the others.
        self.may_send: Callable[[float], bool] = lambda made_s: True
        self.on_delivered: Callable[[str, tuple[str, str]], None] = lambda target, key: None
        self._refreshed_s: dict[str, float] = {}
        self._problems: dict[str, str] = {}  # of the last try, by target
        self._is_dirty = False
        self._tasks: list[asyncio.Task[None]] = []
        self._writing = asyncio.Lock()
        self._sending = {name: asyncio.Lock() for name in self._targets}

    def step(self, verdicts: Sequence[tuple[str, Verdict]], now_s: float) -> None:
        """Decide from the open verdicts and their silences which messages `deliver` sends."""
        for message in self.decisions.step(verdicts, now_s):
            self._is_dirty = True
            for queue in self.queues.values():
                queue.put(message, now_s)

    @property
    def targets(self) -> list[str]:
        """The names of all targets, in the order of the configuration."""
        return list(self._targets)

    def pending(self, episode: str, now_s: float) -> list[AlertTold]:
        """Return what is still to be told about an episode, and why nothing is."""
        held = [
            AlertTold(
                target="all",
                message=str(MessageKind.BEGIN),
                outcome="held back",
                at=now_s,
                why=_HELD_BACK[each],
            )
            for each in self.decisions.held(episode)
        ]
        return held + [
            AlertTold(
                target=name,
                message=str(message.kind),
                outcome="waiting",
                at=at_s,
                why=self._problems.get(name, ""),
            )
            for name, queue in self.queues.items()
            for at_s, message in queue.waiting(episode)
        ]

    async def deliver(self, now_s: float) -> None:
        """Send to every target what is due."""
        await asyncio.gather(*(self._deliver(name, now_s) for name in self._targets))

    def start(self) -> None:
        """Deliver from now on, each target at its own pace."""
        self._tasks = [asyncio.create_task(self._run(name)) for name in self._targets]

    async def stop(self) -> None:
        """Try once more to deliver what is due, and keep the rest in the journal."""
        await end_tasks(self._tasks)
        if self._tasks:
            await self.deliver(time.time())
        await self._save()
        await asyncio.gather(*(target.close() for target in self._targets.values()))

    async def _run(self, name: str) -> None:
        while True:
            await asyncio.sleep(1.0)
            try:
                await self._deliver(name, time.time())
            except Exception:  # one failure must not end the alerts of this target
                log.exception("alert_failed")

    async def _deliver(self, name: str, now_s: float) -> None:
        async with self._sending[name]:
            await self._send_due(name, now_s)

    def delivered_elsewhere(self, delivered: Sequence[tuple[str, str, str]], now_s: float) -> None:
        """Take what another replica delivered: target, episode and kind of each message."""
        for target, episode, kind in delivered:
            queue = self.queues.get(target)
            message = None if queue is None else queue.delivered_elsewhere((episode, kind))
            if message is not None:
                self._tell(target, message, "delivered", now_s)

    def stored(self) -> AlertJournal:
        """Return what another replica, or a later process, needs to go on from here."""
        queues = {name: queue.stored() for name, queue in self.queues.items()}
        return AlertJournal(open=list(self.decisions.open.values()), queues=queues)

    def restore(self, opened: Sequence[OpenAlert], queues: dict[str, StoredQueue]) -> None:
        """Replace everything by what another replica stored."""
        self.decisions = AlertDecisions(opened)
        for name, queue in self.queues.items():
            queue.restore(queues.get(name) or StoredQueue())

    async def _send_due(self, name: str, now_s: float) -> None:
        queue, target = self.queues[name], self._targets[name]
        while (message := queue.due(now_s)) is not None and self.may_send(queue.first_s or now_s):
            await self._save()  # first, so that a crash repeats a message rather than loses it
            delivery = await _try(target, message, now_s)
            self._is_dirty = True
            self._problems[name] = delivery.why
            if not delivery.why or delivery.is_final:
                self.on_delivered(name, message.key)
            if not queue.is_first(message):
                continue
            if not delivery.why:
                queue.delivered(now_s)
                if not delivery.is_needless:
                    self._tell(name, message, "delivered", now_s)
                continue
            queue.failed(now_s, is_final=delivery.is_final)
            if delivery.is_final:
                self._tell(name, message, "refused", now_s, delivery.why)
            log.warning("alert_not_delivered", extra={"target": name, "why": delivery.why})
        for message, why in queue.take_given_up():
            self._tell(name, message, "given up", now_s, why)
        if isinstance(target, Alertmanager) and self.decisions.open and self.may_send(now_s):
            await self._refresh(name, target, now_s)
        await self._save()

    def _tell(
        self, target: str, message: Message, outcome: str, at_s: float, why: str = ""
    ) -> None:
        if self.on_outcome is not None:
            told = AlertTold(
                target=target, message=str(message.kind), outcome=outcome, at=at_s, why=why
            )
            self.on_outcome(message.alert.verdict.episode, told)

    async def _refresh(self, name: str, target: Alertmanager, now_s: float) -> None:
        if now_s - self._refreshed_s.get(name, now_s) >= REFRESH_S:
            self._refreshed_s[name] = now_s
            with contextlib.suppress(IngeroError):  # the next message says what is wrong
                alerts = [each.alert for each in self.decisions.open.values()]
                await target.refresh(alerts, now_s)
        self._refreshed_s.setdefault(name, now_s)

    async def _save(self) -> None:
        async with self._writing:
            if self._path is None or not self._is_dirty:
                return
            self._is_dirty = False
            content = msgspec.json.encode(self.stored())
            try:
                await asyncio.to_thread(replace_file, self._path, content)
            except StoreError as error:
                self._is_dirty = True
                log.error("alert_journal_not_written", extra={"why": str(error)})


async def _try(target: Target, message: Message, now_s: float) -> Delivery:
    try:
        return await target.send(message, now_s)
    except IngeroError as error:  # a secret that cannot be read; an operator can repair it
        return Delivery(str(error))
    except Exception:  # it would fail again, and must not stop those that follow
        log.exception("alert_not_built", extra={"episode": message.alert.verdict.episode})
        return Delivery("it could not be made; the log has the reason", is_final=True)


def _read(path: Path) -> AlertJournal:
    """Read the journal; a damaged one is moved away, because alerts must go on."""
    if not path.exists():
        return AlertJournal()
    try:
        return msgspec.json.decode(read_regular(path, MAX_JOURNAL_BYTES), type=AlertJournal)
    except (msgspec.DecodeError, ForeignFile, TooLarge, OSError) as error:
        log.error("alert_journal_unreadable", extra={"file": str(path), "why": str(error)})
        with contextlib.suppress(OSError):
            path.replace(path.with_suffix(".damaged"))
        return AlertJournal()
