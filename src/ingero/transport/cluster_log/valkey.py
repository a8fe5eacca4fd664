"""The cluster log in Valkey, or Redis 7 and later: a stream, and a snapshot in chunks.

What is read may have been written by anybody who reaches the engine: sizes are bounded and
everything is checked before it is used.
"""

import asyncio
import hashlib
import re
import ssl
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import redis.asyncio as engine
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, NoPermissionError, RedisError, ResponseError

from ingero.contract.replicas.entries import MAX_ENTRY_BYTES
from ingero.errors import AuthError, MalformedInput, TooLarge, Unavailable
from ingero.transport.bearer import read_token_file
from ingero.transport.cluster_log.address import LogAddress
from ingero.transport.cluster_log.port import (
    PAUSED_S,
    RESUME_S,
    RETAINED_S,
    SLOWED,
    Appended,
    Snapshot,
)
from ingero.transport.tls import ClientTls, client_context

CHUNK_BYTES: Final = 1 << 20
MAX_SNAPSHOT_BYTES: Final = 512 << 20
SNAPSHOT_KEPT_S: Final = 24 * 3600
OLD_SNAPSHOT_KEPT_S: Final = 300
TIMEOUT_S: Final = 2.0
READ_ENTRIES: Final = 16
SYNC_MS: Final = 100  # how long an append waits for a copy on a second engine
_POSITION: Final = re.compile(rb"\d{1,16}-\d{1,20}")
T = TypeVar("T")

# Appends entries, then a tick where a second has passed. After a pause the tick waits, so that
# every replica first tells what it knows. Where the clock of the engine steps back, that of the
# log goes on from where it was, but slower, until both are equal.
_APPEND: Final = f"""
local time = redis.call('TIME')
local engine = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local before = redis.call('GET', KEYS[5])
local last, then_engine = string.match(before or '', '^(%d+) (%d+)$')
local ms = engine
if last and tonumber(last) > engine then
  local passed = math.max(engine - tonumber(then_engine), 0)
  ms = tonumber(last) + math.floor(passed * {SLOWED})
end
local function add(body)
  local number = redis.call('INCR', KEYS[2])
  local function append(id)
    local oldest = string.format('%.0f', ms - {int(RETAINED_S * 1000)})
    local to = {{'XADD', KEYS[1], 'MINID', '~', oldest, id, 'n', number, 'e', body}}
    return redis.pcall(unpack(to))
  end
  local id = append(string.format('%.0f-*', ms))
  if type(id) == 'table' then id = append('*') end -- the log is ahead: this clock is a new one
  if type(id) == 'table' then return id end
  ms = tonumber(string.match(id, '^%d+'))
  redis.call('SET', KEYS[5], string.format('%.0f %.0f', ms, engine))
end
local failed
for place = 2, #ARGV do failed = failed or add(ARGV[place]) end
local last_tick = tonumber(redis.call('GET', KEYS[3]) or '0')
local second = math.floor(ms / 1000)
if ARGV[1] ~= '' and second > last_tick then
  local due = true
  if second - last_tick > {PAUSED_S} then
    local resumes = tonumber(redis.call('GET', KEYS[4]) or '0')
    if resumes == 0 then
      resumes = second + {RESUME_S}
      redis.call('SET', KEYS[4], resumes, 'EX', 10)
    end
    due = second >= resumes
  end
  if due then
    redis.call('SET', KEYS[3], second)
    redis.call('DEL', KEYS[4])
    failed = failed or add(ARGV[1])
  end
end
return failed or ms
"""


class _Header(msgspec.Struct, frozen=True):
    """What names the chunks of a snapshot; it is written after them."""

    key: str
    position: str
    number: int
    size_bytes: int
    sha256: bytes


class ValkeyLog:
    """One shard of the log; appends and reads use connections of their own."""

    def __init__(
        self,
        address: LogAddress,
        shard: str,
        *,
        user: str | None = None,
        password_file: Path | None = None,
        tls: ClientTls | None = None,
    ) -> None:
        self._address = address
        self._secrets = (user, password_file, tls or ClientTls())
        prefix = f"ingero:{{{shard}}}"
        self._stream, self._snapshot = f"{prefix}:log", f"{prefix}:snap"
        self._keys = [
            self._stream,
            *(f"{prefix}:{key}" for key in ("seq", "tick", "resume", "clock")),
        ]
        self._writer: Any = None
        self._reader: Any = None
        self._script: Any = None

    async def append(self, bodies: Sequence[bytes], tick: bytes | None) -> float:
        """As `ClusterLog.append`."""

        async def call() -> float:
            writer = self._open()
            ms = await self._script(keys=self._keys, args=[tick or b"", *bodies], client=writer)
            if self._address.sentinel_name:  # so that a fail-over loses nothing
                await writer.wait(1, SYNC_MS)
            return int(ms) / 1e3

        return await self._reached(call, TIMEOUT_S)

    async def read_after(self, position: str, wait_s: float) -> list[Appended]:
        """As `ClusterLog.read_after`."""

        async def call() -> Any:
            self._open()
            block = int(wait_s * 1e3) or None
            return await self._reader.xread({self._stream: position}, READ_ENTRIES, block)

        found = await self._reached(call, TIMEOUT_S + wait_s)
        streams = found.items() if isinstance(found, dict) else found or ()
        return [_appended(each) for _, entries in streams for each in _flat(entries)]

    async def put_snapshot(self, snapshot: Snapshot) -> None:
        """As `ClusterLog.put_snapshot`."""
        content, key = snapshot.content, f"{self._snapshot}:{snapshot.position}"
        if len(content) > MAX_SNAPSHOT_BYTES:
            raise TooLarge(f"a snapshot of {len(content)} bytes is too large to be shared")

        async def call() -> None:
            writer = self._open()
            await writer.delete(key)
            for start in range(0, len(content), CHUNK_BYTES):
                await writer.rpush(key, content[start : start + CHUNK_BYTES])
            await writer.expire(key, SNAPSHOT_KEPT_S)
            header = _Header(
                key, snapshot.position, snapshot.number, len(content),
                hashlib.sha256(content).digest(),
            )  # fmt: skip
            before = await writer.set(
                self._snapshot, msgspec.msgpack.encode(header), ex=SNAPSHOT_KEPT_S, get=True
            )
            if before is not None:
                old = _header(before).key
                if old != key:  # a replica may be reading it
                    await writer.expire(old, OLD_SNAPSHOT_KEPT_S)

        await self._reached(call, 30.0)

    async def get_snapshot(self) -> Snapshot | None:
        """As `ClusterLog.get_snapshot`."""

        async def call() -> Snapshot | None:
            writer = self._open()
            found = await writer.get(self._snapshot)
            if found is None:
                return None
            header = _header(found)
            if not header.key.startswith(self._snapshot) or header.size_bytes > MAX_SNAPSHOT_BYTES:
                raise MalformedInput("the snapshot in the cluster log is damaged: its header")
            chunks = []
            for place in range(-(-header.size_bytes // CHUNK_BYTES)):
                chunk = await writer.lindex(header.key, place)
                if chunk is None or len(chunk) > CHUNK_BYTES:
                    raise MalformedInput("the snapshot in the cluster log is damaged: a chunk")
                chunks.append(chunk)
            content = b"".join(chunks)
            if hashlib.sha256(content).digest() != header.sha256:
                raise MalformedInput("the snapshot in the cluster log is damaged: its digest")
            return Snapshot(header.position, header.number, content)

        return await self._reached(call, 30.0)

    async def close(self) -> None:
        """As `ClusterLog.close`."""
        clients, self._writer, self._reader = (self._writer, self._reader), None, None
        for client in clients:
            if client is not None:
                await client.aclose()

    def _open(self) -> Any:
        if self._writer is None:
            self._writer, self._reader = self._connect(), self._connect()
            self._script = self._writer.register_script(_APPEND)
        return self._writer

    def _connect(self) -> Any:
        """Return a client, which connects when it is used; raises AuthError for wrong files."""
        user, password_file, tls = self._secrets
        password = None if password_file is None else read_token_file(password_file)
        # Retries are ours: the client's would append an entry twice.
        common: dict[str, Any] = {
            "socket_timeout": TIMEOUT_S + 2.0, "socket_connect_timeout": TIMEOUT_S,
            "retry": Retry(NoBackoff(), 0), "health_check_interval": 0, "protocol": 2,
        }  # fmt: skip
        if self._address.is_tls:
            client_context(tls)  # its error names the wrong file
            common |= _tls_options(tls)
        about = {**common, "username": user, "password": password}
        if self._address.sentinel_name:
            sentinel = Sentinel(self._address.hosts, sentinel_kwargs=common)  # type: ignore[no-untyped-call]  # of the client
            return sentinel.master_for(self._address.sentinel_name, **about)
        host, port = self._address.hosts[0]
        return engine.Redis(host=host, port=port, db=self._address.database, **about)

    async def _reached(self, call: Callable[[], Awaitable[T]], within_s: float) -> T:
        try:
            async with asyncio.timeout(within_s):
                return await call()
        except (AuthenticationError, NoPermissionError) as error:
            raise AuthError(f"the cluster log refuses us: {error}") from None
        except ResponseError as error:
            raise Unavailable(f"the cluster log cannot be used: {error}") from None
        except (RedisError, OSError, TimeoutError, ssl.SSLError) as error:
            why = str(error) or type(error).__name__
            raise Unavailable(f"the cluster log cannot be reached: {why}") from None


def _tls_options(tls: ClientTls) -> dict[str, Any]:
    return {
        "ssl": True,
        "ssl_cert_reqs": "required",
        "ssl_check_hostname": True,
        "ssl_min_version": ssl.TLSVersion.TLSv1_2,
        "ssl_ca_certs": None if tls.ca is None else str(tls.ca),
        "ssl_certfile": None if tls.cert is None else str(tls.cert),
        "ssl_keyfile": None if tls.key is None else str(tls.key),
    }


def _header(data: bytes) -> _Header:
    try:
        return msgspec.msgpack.decode(data, type=_Header)
    except msgspec.DecodeError as error:
        raise MalformedInput(f"the snapshot in the cluster log is damaged: {error}") from None


def _flat(entries: Any) -> Any:
    """Return the entries of a stream, which some versions of the client nest once more."""
    return entries[0] if entries and isinstance(entries[0], list) else entries


def _appended(entry: Any) -> Appended:
    """Return one entry of the stream; a foreign one has an empty body, which is skipped."""
    position, fields = entry
    if not _POSITION.fullmatch(position):
        raise MalformedInput(f"{position[:40]!r} is no position of the cluster log")
    number, body = fields.get(b"n", b""), fields.get(b"e", b"")
    if len(body) > MAX_ENTRY_BYTES:
        body = b""
    known = int(number) if number.isdigit() and len(number) < 19 else 0
    ms = int(position.partition(b"-")[0])
    return Appended(position.decode(), known, ms / 1e3, body)
