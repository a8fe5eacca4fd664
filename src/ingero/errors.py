"""Every error of ours, in one tree.

IngeroError            printed by ``cli.main`` or the service loop; says what to do next
├── ConfigError        a setting is wrong; names source, line, key and what is allowed
├── MalformedInput     input that is not in the expected format; names the place
│   ├── MalformedPush  an OTLP body that cannot be decoded
│   └── ForeignFile    a file of another kind or version
├── TooLarge           a bound on size was reached
├── AuthError          a token, certificate or permission is missing or wrong
├── Unavailable        a peer, probe or device cannot be used now; says what that costs
│   └── Overloaded     a queue is full or a service is stopping; says when to retry
└── StoreError         a store cannot be opened, written or trusted
    ├── StoreLocked    another process owns it
    ├── StoreFull      no space or no permission to write: new data is refused, old data kept
    └── StoreDamaged   something that was stored cannot be read back; names what and where
"""

from pathlib import Path


class IngeroError(Exception):
    """An error whose message tells the reader what to do."""


class ConfigError(IngeroError):
    """A setting is wrong."""


class MalformedInput(IngeroError):
    """Input is not in the expected format."""


class MalformedPush(MalformedInput):
    """An OTLP body cannot be decoded."""


class ForeignFile(MalformedInput):
    """A file is of another kind or version than expected."""


class TooLarge(IngeroError):
    """A bound on size was reached."""


class AuthError(IngeroError):
    """A token, certificate or permission is missing or wrong."""


class Unavailable(IngeroError):
    """A peer, probe or device cannot be used now."""


class Overloaded(Unavailable):
    """A queue is full or a service is stopping; send the request again after `retry_after_s`."""

    def __init__(self, reason: str, retry_after_s: int) -> None:
        super().__init__(f"{reason}; send it again in {retry_after_s} s")
        self.retry_after_s = retry_after_s


class StoreError(IngeroError):
    """A store cannot be opened, written or trusted."""


class StoreLocked(StoreError):
    """Another process owns the store."""

    def __init__(self, path: Path, pid: int | None) -> None:
        owner = f"process {pid}" if pid else "another process"
        super().__init__(f"{path} is open for writing in {owner}; stop it or use another path")


class StoreFull(StoreError):
    """There is no space or no permission to write."""


class StoreDamaged(StoreError):
    """Something that was stored cannot be read back."""
