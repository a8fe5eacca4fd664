"""The quarantine: acknowledged requests that cannot be loaded, one file each, beside the database.

A file holds one line of JSON that says why, and then the request as a frame of the journal. It is
named after the digest of the request, so no request is ever in quarantine twice. A file whose
number is above the applied sequence was left by a crash: the journal still has its request, which
is loaded or set aside again.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from ingero.contract.otlp.rows import Signal
from ingero.errors import StoreDamaged, StoreError
from ingero.files import replace_file, sync_directory
from ingero.storage.journal.frames import Frame, decode_frame, encode_frame, request_digest

DEFAULT_MAX_BYTES: Final = 256 << 20
MAX_REQUESTS: Final = 10_000
LONGEST_MESSAGE: Final = 400
_SUFFIX: Final = ".request"
_LONGEST_HEAD: Final = 8192


@dataclass(frozen=True, slots=True)
class Quarantined:
    """One request in quarantine, without its body."""

    id: str  # hex digits of the digest
    seq: int
    signal: str
    received_us: int
    size_bytes: int
    reason: str  # unreadable, refused or crashed
    message: str


class Quarantine:
    """The folder of one database, which only the owner of the database may change.

    Without `max_bytes` it takes any number of requests.
    """

    def __init__(self, directory: Path, max_bytes: int | None = None) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self.entries: dict[bytes, Quarantined] = {}
        self.damaged: list[Path] = []
        for path in sorted(directory.glob("*" + _SUFFIX)):
            try:
                entry = _read_head(path)
                self.entries[bytes.fromhex(entry.id)] = entry
            except (OSError, ValueError, TypeError):
                self.damaged.append(path)

    @property
    def size_bytes(self) -> int:
        """The size of the requests in quarantine."""
        return sum(entry.size_bytes for entry in self.entries.values())

    def settled(self, applied_seq: int) -> set[bytes]:
        """Return the digests of the requests that are here and nowhere else."""
        return {digest for digest, entry in self.entries.items() if entry.seq <= applied_seq}

    def put(self, frame: Frame, reason: str, message: str) -> bool:
        """Write a request durably; return False if there is no room for it."""
        digest = request_digest(frame.signal, frame.body)
        before = self.entries.get(digest)
        count = len(self.entries) + (before is None)
        size = self.size_bytes - (before.size_bytes if before else 0) + len(frame.body)
        if self._max_bytes is not None and (count > MAX_REQUESTS or size > self._max_bytes):
            return False
        entry = Quarantined(
            digest.hex(),
            frame.seq,
            Signal(frame.signal).name.lower(),
            frame.received_us,
            len(frame.body),
            reason,
            message[:LONGEST_MESSAGE],
        )
        try:
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(f"cannot create {self._directory}: {error.strerror}") from None
        head = json.dumps(asdict(entry)).encode() + b"\n"
        replace_file(self._path(entry), head + encode_frame(frame))
        self.entries[digest] = entry
        return True

    def read(self, entry: Quarantined) -> Frame:
        """Return the request of an entry; raise StoreDamaged if its file is not sound."""
        try:
            data = self._path(entry).read_bytes()
        except OSError as error:
            raise StoreError(f"cannot read {self._path(entry)}: {error.strerror}") from None
        frame = decode_frame(data, data.find(b"\n") + 1)
        if frame is None or request_digest(frame.signal, frame.body).hex() != entry.id:
            raise StoreDamaged(f"{self._path(entry)} is damaged: its request cannot be read")
        return frame

    def remove(self, digest: bytes) -> None:
        """Delete a request from quarantine for good."""
        entry = self.entries[digest]
        try:
            self._path(entry).unlink(missing_ok=True)
            sync_directory(self._directory)
        except OSError as error:
            raise StoreError(f"cannot remove {self._path(entry)}: {error.strerror}") from None
        del self.entries[digest]

    def find(self, prefix: str) -> Quarantined:
        """Return the request whose id begins with `prefix`; raise StoreError unless it is one."""
        found = [entry for entry in self.entries.values() if entry.id.startswith(prefix.lower())]
        if len(found) != 1:
            problem = "is not in quarantine" if not found else f"names {len(found)} requests"
            raise StoreError(f"{prefix!r} {problem}; see `ingero-echo quarantine list`")
        return found[0]

    def in_order(self) -> list[Quarantined]:
        """Return all requests in the order of their arrival."""
        return sorted(self.entries.values(), key=lambda entry: (entry.seq, entry.id))

    def _path(self, entry: Quarantined) -> Path:
        return self._directory / (entry.id + _SUFFIX)


def quarantine_directory(database: Path) -> Path:
    """Return the folder of a database's quarantine."""
    return database.with_name(database.name + ".quarantine")


def _read_head(path: Path) -> Quarantined:
    with path.open("rb") as file:
        entry = Quarantined(**json.loads(file.readline(_LONGEST_HEAD)))
    if entry.id != path.name.removesuffix(_SUFFIX):
        raise ValueError(f"{path} names another request")
    return entry
