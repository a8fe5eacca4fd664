"""What waits for one target: each message once, in order, within a rate, tried until it arrives."""

from collections import deque
from dataclasses import dataclass
from typing import Final

import msgspec

from ingero.core.alerts.alert import Message

FIRST_PAUSE_S: Final = 1.0
LONGEST_PAUSE_S: Final = 60.0
MAX_WAITING: Final = 1000
MAX_AGE_S: Final = 86400.0
KEPT_KEYS: Final = 2000  # of messages that were delivered, so that none is sent again


@dataclass(slots=True)
class QueueCounters:
    """Counts of messages and tries."""

    sent: int = 0
    failed: int = 0  # tries
    dropped_full: int = 0
    dropped_old: int = 0
    dropped_refused: int = 0


class StoredQueue(msgspec.Struct, kw_only=True):
    """A queue as the journal keeps it."""

    waiting: list[tuple[float, Message]] = []
    delivered: list[tuple[str, str]] = []


class AlertQueue:
    """The messages for one target; times are arguments, so that tests drive them."""

    def __init__(self, max_per_minute: int, stored: StoredQueue | None = None) -> None:
        self.counters = QueueCounters()
        self.last_ok: bool | None = None  # of the last try; None before the first
        self._max_per_minute = max_per_minute
        self._given_up: list[tuple[Message, str]] = []  # and why
        self._waiting: deque[tuple[float, Message]] = deque()
        self._delivered: dict[tuple[str, str], None] = {}
        self.restore(stored or StoredQueue())
        self._sent_s: deque[float] = deque()  # of the last minute
        self._pause_s, self._next_s = 0.0, 0.0

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, message: Message, now_s: float) -> None:
        """Add a message, unless it waits already or was delivered."""
        if message.key in self._delivered or any(m.key == message.key for _, m in self._waiting):
            return
        self._waiting.append((now_s, message))
        if len(self._waiting) > MAX_WAITING:
            self._given_up.append((self._waiting.popleft()[1], f"{MAX_WAITING} others waited"))
            self.counters.dropped_full += 1

    @property
    def first_s(self) -> float | None:
        """When the message that is sent next was put here."""
        return self._waiting[0][0] if self._waiting else None

    def due(self, now_s: float) -> Message | None:
        """Return the message to send now, if the pause is over and the rate allows it."""
        while self._waiting and now_s - self._waiting[0][0] > MAX_AGE_S:
            self._given_up.append((self._waiting.popleft()[1], "not delivered within a day"))
            self.counters.dropped_old += 1
        while self._sent_s and now_s - self._sent_s[0] >= 60.0:
            self._sent_s.popleft()
        if not self._waiting or now_s < self._next_s or len(self._sent_s) >= self._max_per_minute:
            return None
        return self._waiting[0][1]

    def take_given_up(self) -> list[tuple[Message, str]]:
        """Return the messages that were dropped since the last call, each with the reason."""
        found, self._given_up = self._given_up, []
        return found

    def waiting(self, episode: str) -> list[tuple[float, Message]]:
        """Return what waits about one episode, and since when."""
        return [each for each in self._waiting if each[1].alert.verdict.episode == episode]

    def delivered(self, now_s: float) -> None:
        """Note that the message that was due has arrived."""
        _, message = self._waiting.popleft()
        self._note(message.key)
        self._sent_s.append(now_s)
        self._pause_s, self._next_s, self.last_ok = 0.0, 0.0, True
        self.counters.sent += 1

    def is_first(self, message: Message) -> bool:
        """Tell whether a message is still the next to be sent; another replica may have sent it."""
        return bool(self._waiting) and self._waiting[0][1].key == message.key

    def delivered_elsewhere(self, key: tuple[str, str]) -> Message | None:
        """Note that another replica delivered a message, and return it if it waited here."""
        found = next((message for _, message in self._waiting if message.key == key), None)
        self._waiting = deque(each for each in self._waiting if each[1].key != key)
        self._note(key)
        return found

    def _note(self, key: tuple[str, str]) -> None:
        self._delivered[key] = None
        while len(self._delivered) > KEPT_KEYS:
            del self._delivered[next(iter(self._delivered))]

    def failed(self, now_s: float, *, is_final: bool) -> None:
        """Note a failed try; a message that the target refuses for good is dropped."""
        self.counters.failed += 1
        self.last_ok = False
        if is_final:
            self._waiting.popleft()
            self.counters.dropped_refused += 1
            return
        self._pause_s = min(max(2 * self._pause_s, FIRST_PAUSE_S), LONGEST_PAUSE_S)
        self._next_s = now_s + self._pause_s

    def restore(self, stored: StoredQueue) -> None:
        """Replace everything by what another replica, or an earlier process, stored."""
        self._waiting = deque(stored.waiting)
        self._delivered = dict.fromkeys(stored.delivered)

    def stored(self) -> StoredQueue:
        """Return what the journal keeps."""
        return StoredQueue(waiting=list(self._waiting), delivered=list(self._delivered))
