"""Who may ask and send: bearer tokens with cluster scopes, replaced without a restart.

Only digests of tokens are kept. A token that a reload removed stays valid for a grace period, so
that senders and dashboards can change over one by one.
"""

import hmac
import logging
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec
import yaml

from ingero.config.echo import TOKEN_VARIABLE, token_beside
from ingero.errors import AuthError
from ingero.transport.bearer import kept_token, parse_bearer, token_digest, token_from
from ingero.transport.private_files import check_private_file

log = logging.getLogger(__name__)

MAX_ACL_BYTES: Final = 1 << 20
MAX_KEYS: Final = 1_000
MIN_TOKEN_LENGTH: Final = 16
DEFAULT_KEY: Final = "default"  # the single token of --auth-token-file


@dataclass(frozen=True, slots=True)
class Key:
    """One bearer token; `clusters` None means all clusters."""

    name: str
    digest: bytes
    clusters: frozenset[str] | None = None

    @property
    def short_digest(self) -> str:
        """The part of the digest that logs and the audit table show."""
        return self.digest.hex()[:12]

    def may_see(self, cluster: str) -> bool:
        """Return whether the cluster is inside the scope of this token."""
        return self.clusters is None or cluster in self.clusters


class _AclEntry(msgspec.Struct, forbid_unknown_fields=True):
    key_name: str
    token: str
    allowed_clusters: list[str] = []


def read_keys(token_file: Path | None, acl_file: Path | None, database: Path) -> list[Key]:
    """Return all valid tokens; without any source, create one and keep it beside the database."""
    if acl_file is None:
        token = token_from(token_file, TOKEN_VARIABLE) or kept_token(token_beside(database))
        return [Key(DEFAULT_KEY, token_digest(token))]
    keys = read_acl(acl_file)
    single = token_from(token_file, TOKEN_VARIABLE)
    if single is not None:
        keys.append(Key(DEFAULT_KEY, token_digest(single)))
    _check_distinct(keys, acl_file)
    return keys


def read_acl(path: Path) -> list[Key]:
    """Return the tokens of an ACL file (YAML or JSON); errors name the entry, never a token."""
    check_private_file(path, "ACL file")
    data = path.read_bytes()[: MAX_ACL_BYTES + 1]
    if len(data) > MAX_ACL_BYTES:
        raise AuthError(f"ACL file {path} is larger than {MAX_ACL_BYTES} bytes")
    try:
        entries = msgspec.convert(yaml.safe_load(data), list[_AclEntry])
    except yaml.YAMLError as error:
        # the text of the YAML error would quote the file
        mark = getattr(error, "problem_mark", None)
        raise AuthError(
            f"ACL file {path}{f' line {mark.line + 1}' if mark else ''}: not valid YAML or JSON"
        ) from None
    except msgspec.ValidationError as error:
        raise AuthError(
            f"ACL file {path}: {error}; expected a list of key_name, token, allowed_clusters"
        ) from None
    if not entries or len(entries) > MAX_KEYS:
        raise AuthError(f"ACL file {path} has {len(entries)} entries; 1 to {MAX_KEYS} are allowed")
    for number, entry in enumerate(entries, 1):
        if (
            len(entry.token) < MIN_TOKEN_LENGTH
            or not entry.token.isprintable()
            or " " in entry.token
        ):
            raise AuthError(
                f"ACL file {path}: the token of entry {number} must be at least {MIN_TOKEN_LENGTH} "
                "characters without spaces; `openssl rand -hex 32` makes one"
            )
        if not entry.key_name:
            raise AuthError(f"ACL file {path}: entry {number} has an empty key_name")
    return [
        Key(entry.key_name, token_digest(entry.token), frozenset(entry.allowed_clusters) or None)
        for entry in entries
    ]


def _check_distinct(keys: list[Key], path: Path) -> None:
    for what, values in (
        ("key_name", [key.name for key in keys]),
        ("token", [key.digest for key in keys]),
    ):
        if len(set(values)) < len(values):
            raise AuthError(f"ACL file {path}: two entries have the same {what}")


class Access:
    """The tokens that are valid now. Times are of a monotonic clock."""

    def __init__(self, keys: Iterable[Key], grace_s: float) -> None:
        self._keys = tuple(keys)
        self._leaving: tuple[tuple[Key, float], ...] = ()
        self._grace_s = grace_s

    def replace(self, keys: Iterable[Key], now_s: float) -> None:
        """Take a new set of tokens.

        Those that are no longer in it stay valid for the grace period, with the scope they had.
        """
        fresh = tuple(keys)
        known = {key.digest for key in fresh}
        leaving = [
            (key, until)
            for key, until in self._leaving
            if key.digest not in known and until > now_s
        ]
        leaving += [(key, now_s + self._grace_s) for key in self._keys if key.digest not in known]
        self._keys, self._leaving = fresh, tuple(leaving)
        log.info("bearers_replaced", extra={"bearers": len(fresh), "in_grace": len(leaving)})

    def find(self, authorization: str | None, now_s: float) -> Key | None:
        """Return the key of an Authorization header.

        All keys are compared, so that the time taken reveals nothing.
        """
        token = parse_bearer(authorization)
        if token is None:
            return None
        presented = token_digest(token)
        found: Key | None = None
        for key in self._keys:
            if hmac.compare_digest(presented, key.digest):
                found = key
        for key, until in self._leaving:
            if hmac.compare_digest(presented, key.digest) and now_s < until:
                found = key
        return found


class RateLimit:
    """Token buckets by caller.

    When there are too many callers, the least recently seen is dropped; it starts full again.
    """

    def __init__(self, per_s: float, burst: int, max_callers: int = 4096) -> None:
        self._per_s = per_s
        self._burst = burst
        self._max_callers = max_callers
        self._buckets: OrderedDict[object, tuple[float, float]] = OrderedDict()

    def take(self, caller: object, now_s: float) -> float:
        """Return 0.0 if the caller may proceed, else the seconds until it may."""
        level, at_s = self._buckets.pop(caller, (float(self._burst), now_s))
        level = min(float(self._burst), level + (now_s - at_s) * self._per_s)
        allowed = level >= 1.0
        self._buckets[caller] = (level - 1.0 if allowed else level, now_s)
        if len(self._buckets) > self._max_callers:
            self._buckets.popitem(last=False)
        return 0.0 if allowed else (1.0 - level) / self._per_s
