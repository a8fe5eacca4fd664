"""Bearer tokens: where they come from, how they are read off a request, how they are compared."""

import contextlib
import hashlib
import hmac
import os
import stat
from pathlib import Path

from ingero.errors import AuthError

MAX_TOKEN_FILE_BYTES = 64 * 1024
BEARER_NEEDED = "a bearer token is needed"  # the same words for missing, malformed and wrong
_MIN_BEARER_LENGTH = len("Bearer")


def parse_bearer(header: str | None) -> str | None:
    """The token of an Authorization header; None for a missing, malformed or other scheme."""
    if not header or len(header) < _MIN_BEARER_LENGTH:
        return None
    scheme, _, rest = header.strip().replace("\t", " ").partition(" ")
    token = rest.strip()
    return token if scheme.lower() == "bearer" and token else None


def token_digest(token: str) -> bytes:
    """What we keep and compare instead of the token."""
    return hashlib.sha256(token.encode()).digest()


def tokens_equal(presented: str | None, expected_digest: bytes | None) -> bool:
    """Constant-time comparison of digests; an absent or empty expectation never matches."""
    if (
        not presented
        or not expected_digest
        or hmac.compare_digest(expected_digest, token_digest(""))
    ):
        return False
    return hmac.compare_digest(token_digest(presented), expected_digest)


def read_token_file(path: Path) -> str:
    """The token in a file that only its owner can read."""
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
    """A token by file or by environment, never by flag: process arguments are public."""
    if file is not None:
        return read_token_file(file)
    return os.environ.get(variable) or None


class RotatingToken:
    """The token in a file as it is now; the last good one while the file cannot be read. Raises AuthError at first."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._last = read_token_file(path)

    def __call__(self) -> str:
        with contextlib.suppress(AuthError):
            self._last = read_token_file(self._path)
        return self._last


def check_private_file(path: Path, what: str) -> None:
    """Refuse directories, missing files and files that group or others may read."""
    try:
        status = path.stat()
    except OSError as error:
        raise AuthError(f"cannot read {what} {path}: {error.strerror}") from None
    if not stat.S_ISREG(status.st_mode):
        raise AuthError(f"{what} {path} is not a regular file")
    loose = stat.S_IMODE(status.st_mode) & 0o077
    if loose and os.environ.get("INGERO_TLS_ALLOW_LOOSE_KEY_PERMS") != "1":
        raise AuthError(f"{what} {path} can be read by others; run `chmod 600 {path}`")
