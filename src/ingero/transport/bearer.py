"""Bearer tokens: read from a file or the environment, sent by clients, compared by servers."""

import contextlib
import hashlib
import logging
import os
import secrets
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec
import yaml

from ingero.errors import AuthError
from ingero.files import create_private
from ingero.transport.private_files import check_private_file

log = logging.getLogger(__name__)

MAX_TOKEN_FILE_BYTES: Final = 64 * 1024
MAX_KEY_FILE_BYTES: Final = 1 << 20
MAX_KEYS: Final = 1_000
MIN_TOKEN_LENGTH: Final = 16  # of tokens that a server accepts
DEFAULT_KEY: Final = "default"  # name of a token that stands alone
AUTHORIZATION: Final = "authorization"  # the request header, and the key in gRPC metadata
BEARER_NEEDED: Final = "a bearer token is needed"  # also for a malformed and for a wrong token
CHALLENGE_HEADER: Final = "WWW-Authenticate"
CHALLENGE: Final = "Bearer"
INVALID_CHALLENGE: Final = 'Bearer error="invalid_token"'
_MIN_BEARER_LENGTH: Final = len("Bearer")


def read_token_file(path: Path) -> str:
    """Return the token in a file that only its owner can read; raise AuthError."""
    check_private_file(path, "token file")
    data = _read(path, "token file", MAX_TOKEN_FILE_BYTES)
    token = data.decode("utf-8", errors="replace").strip()
    if not token:
        raise AuthError(
            f"token file {path} is empty; `openssl rand -hex 32 > {path}` makes a token"
        )
    if not token.isascii() or any(
        character.isspace() or not character.isprintable() for character in token
    ):
        raise AuthError(f"token file {path} must hold just the token: one word of ASCII characters")
    return token


def _read(path: Path, what: str, limit_bytes: int) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(limit_bytes + 1)
    except OSError as error:
        raise AuthError(f"cannot read {what} {path}: {error.strerror}") from None
    if len(data) > limit_bytes:
        raise AuthError(f"{what} {path} is larger than {limit_bytes} bytes")
    return data


def token_from(file: Path | None, variable: str) -> str | None:
    """Return the token of a file or of an environment variable.

    There is no flag for a token, because every user of a machine can read process arguments.
    """
    if file is not None:
        return read_token_file(file)
    return os.environ.get(variable) or None


def kept_token(path: Path) -> str:
    """Return the token in a file, and create it first where there is none: random, private."""
    if not path.exists():
        create_private(path, f"{secrets.token_hex(32)}\n".encode())
    return read_token_file(path)


class RotatingToken:
    """The token in a file as it is now, or the last valid one while the file cannot be read.

    The first read raises AuthError.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last = read_token_file(path)

    def __call__(self) -> str:
        with contextlib.suppress(AuthError):
            self._last = read_token_file(self._path)
        return self._last


def authorization(token: str | None) -> dict[str, str]:
    """Return the header that sends a token; no header without a token."""
    return {"Authorization": f"Bearer {token}"} if token else {}


def parse_bearer(header: str | None) -> str | None:
    """Return the token of an Authorization header; None if there is none or another scheme."""
    if not header or len(header) < _MIN_BEARER_LENGTH:
        return None
    scheme, _, rest = header.strip().replace("\t", " ").partition(" ")
    token = rest.strip()
    return token if scheme.lower() == "bearer" and token else None


def token_digest(token: str) -> bytes:
    """Return the digest that servers keep and compare instead of the token."""
    return hashlib.sha256(token.encode()).digest()


class TokenScope(StrEnum):
    """What a token may be used for."""

    PUSH = "push"  # send OTLP, and poll the threshold of its clusters
    READ = "read"
    OPERATE = "operate"


ALL_SCOPES: Final = frozenset(TokenScope)


@dataclass(frozen=True, slots=True)
class Key:
    """One bearer token that a server accepts; `clusters` None means all clusters.

    With `node` it is the token of an enrolled node, which pushes as itself only.
    """

    name: str
    digest: bytes
    clusters: frozenset[str] | None = None
    scopes: frozenset[TokenScope] = ALL_SCOPES
    node: str | None = None

    @property
    def short_digest(self) -> str:
        """The part of the digest that logs and the audit table show."""
        return self.digest.hex()[:12]

    @property
    def is_confined(self) -> bool:
        """Whether what a request names must be compared with what this token allows."""
        return self.clusters is not None or self.node is not None

    def may_see(self, cluster: str) -> bool:
        """Return whether this token is valid for the cluster."""
        return self.clusters is None or cluster in self.clusters

    def may(self, *scopes: TokenScope) -> bool:
        """Return whether this token has one of the scopes."""
        return not self.scopes.isdisjoint(scopes)


class _Entry(msgspec.Struct, forbid_unknown_fields=True):
    """One token of a list; `allowed_clusters` may be empty, which means none."""

    key_name: str
    token: str
    allowed_clusters: list[str] | msgspec.UnsetType = msgspec.UNSET
    scopes: list[TokenScope] | msgspec.UnsetType = msgspec.UNSET

    def key(self) -> Key:
        clusters = None if self.allowed_clusters is msgspec.UNSET else self.allowed_clusters
        return Key(
            self.key_name,
            token_digest(self.token),
            None if clusters is None else frozenset(clusters),
            ALL_SCOPES if self.scopes is msgspec.UNSET else frozenset(self.scopes),
        )


def single_key(token: str, source: str) -> Key:
    """Return the key of a token that stands alone; raise AuthError if it is too short."""
    if len(token) < MIN_TOKEN_LENGTH:
        raise AuthError(
            f"the token of {source} must be at least {MIN_TOKEN_LENGTH} characters; "
            "`openssl rand -hex 32` makes one"
        )
    return Key(DEFAULT_KEY, token_digest(token))


def read_keys(path: Path, what: str = "token file") -> list[Key]:
    """Return the tokens that a server accepts, from a file with one token or a list of them.

    The list is YAML or JSON. Errors name the entry, never a token.
    """
    check_private_file(path, what)
    data = _read(path, what, MAX_KEY_FILE_BYTES)
    if what == "token file" and not data.lstrip().startswith((b"- ", b"-\n", b"[")):
        keys, unscoped = [single_key(read_token_file(path), f"{what} {path}")], [DEFAULT_KEY]
    else:
        entries = _entries(data, path, what)
        keys = [entry.key() for entry in entries]
        unscoped = [entry.key_name for entry in entries if entry.scopes is msgspec.UNSET]
    check_distinct(keys, f"{what} {path}")
    if unscoped:
        named = ", ".join(unscoped[:10])
        extra = {"file": str(path), "bearers": named, "next": "list them with scopes"}
        log.warning("tokens_without_scopes", extra=extra)
    return keys


def keys_from(file: Path | None, variable: str) -> list[Key] | None:
    """Return the tokens of a file or of an environment variable; None if there is neither."""
    if file is not None:
        return read_keys(file)
    token = os.environ.get(variable)
    return [single_key(token, f"${variable}")] if token else None


def check_distinct(keys: list[Key], source: str) -> None:
    """Raise AuthError where two keys have the same name or token."""
    for what, values in (
        ("key_name", [key.name for key in keys]),
        ("token", [key.digest for key in keys]),
    ):
        if len(set(values)) < len(values):
            raise AuthError(f"{source}: two entries have the same {what}")


def _entries(data: bytes, path: Path, what: str) -> list[_Entry]:
    try:
        entries = msgspec.convert(yaml.safe_load(data), list[_Entry])
    except (yaml.YAMLError, RecursionError) as error:
        # the text of the YAML error would quote the file
        mark = getattr(error, "problem_mark", None)
        raise AuthError(
            f"{what} {path}{f' line {mark.line + 1}' if mark else ''}: not valid YAML or JSON"
        ) from None
    except msgspec.ValidationError as error:
        raise AuthError(
            f"{what} {path}: {error}; "
            "expected a list of key_name, token, allowed_clusters and scopes"
        ) from None
    if not entries or len(entries) > MAX_KEYS:
        raise AuthError(f"{what} {path} has {len(entries)} entries; 1 to {MAX_KEYS} are allowed")
    for number, entry in enumerate(entries, 1):
        token = entry.token
        if len(token) < MIN_TOKEN_LENGTH or not token.isprintable() or " " in token:
            raise AuthError(
                f"{what} {path}: the token of entry {number} must be at least {MIN_TOKEN_LENGTH} "
                "characters without spaces; `openssl rand -hex 32` makes one"
            )
        if not entry.key_name:
            raise AuthError(f"{what} {path}: entry {number} has an empty key_name")
    return entries
