"""Bearer tokens: read from a file or the environment, sent by clients, compared by servers."""

import contextlib
import hashlib
import hmac
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ingero.errors import AuthError
from ingero.files import create_private
from ingero.transport.private_files import check_private_file

MAX_TOKEN_FILE_BYTES: Final = 64 * 1024
AUTHORIZATION: Final = "authorization"  # the request header, and the key in gRPC metadata
BEARER_NEEDED: Final = "a bearer token is needed"  # also for a malformed and for a wrong token
CHALLENGE_HEADER: Final = "WWW-Authenticate"
CHALLENGE: Final = "Bearer"
INVALID_CHALLENGE: Final = 'Bearer error="invalid_token"'
_MIN_BEARER_LENGTH: Final = len("Bearer")


def read_token_file(path: Path) -> str:
    """Return the token in a file that only its owner can read; raise AuthError."""
    check_private_file(path, "token file")
    try:
        with path.open("rb") as file:
            data = file.read(MAX_TOKEN_FILE_BYTES + 1)
    except OSError as error:
        raise AuthError(f"cannot read token file {path}: {error.strerror}") from None
    if len(data) > MAX_TOKEN_FILE_BYTES:
        raise AuthError(f"token file {path} is larger than {MAX_TOKEN_FILE_BYTES} bytes")
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


def tokens_equal(presented: str | None, expected_digest: bytes | None) -> bool:
    """Compare digests in constant time; a missing or empty expected token never matches."""
    if (
        not presented
        or not expected_digest
        or hmac.compare_digest(expected_digest, token_digest(""))
    ):
        return False
    return hmac.compare_digest(token_digest(presented), expected_digest)


@dataclass(frozen=True, slots=True)
class Key:
    """One bearer token that a server accepts; `clusters` None means all clusters."""

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
