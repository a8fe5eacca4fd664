"""The join code: the fingerprint of Fleet's authority, and a secret.

A node compares the one before it sends the other, so that nobody in between learns the secret.
"""

import base64
import binascii
from dataclasses import dataclass
from typing import Final

from ingero.errors import MalformedInput

CODE_VARIABLE: Final = "INGERO_JOIN_CODE"
SECRET_BYTES: Final = 16
_PREFIX: Final = "ij1_"
_FINGERPRINT_BYTES: Final = 32


@dataclass(frozen=True, slots=True)
class JoinCode:
    """What a join code holds: the SHA-256 fingerprint of the authority, and the secret."""

    fingerprint: bytes
    secret: bytes

    def __str__(self) -> str:
        """Return the code without its secret, for logs."""
        return f"{_PREFIX}{base64.urlsafe_b64encode(self.fingerprint).decode()[:8]}…"


def encode_code(code: JoinCode) -> str:
    """Return the code as one word that a shell does not change."""
    return _PREFIX + base64.urlsafe_b64encode(code.fingerprint + code.secret).decode()


def decode_code(text: str) -> JoinCode:
    """Return what a code holds; raise MalformedInput without quoting it."""
    word = text.strip()
    try:
        data = base64.b64decode(word.removeprefix(_PREFIX), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        data = b""
    if not word.startswith(_PREFIX) or len(data) != _FINGERPRINT_BYTES + SECRET_BYTES:
        raise MalformedInput(
            f"this is no join code: one begins with {_PREFIX} and has 68 characters; "
            "`ingero fleet code` prints one"
        )
    return JoinCode(data[:_FINGERPRINT_BYTES], data[_FINGERPRINT_BYTES:])
