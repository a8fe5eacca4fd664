"""Tokens of tests: who may use a listener, and files of tokens."""

from pathlib import Path

from ingero.transport.access import Access
from ingero.transport.bearer import Key, token_digest


def access_of(token: str | None) -> Access:
    """Access with one token, or for everybody."""
    return Access([Key("default", token_digest(token))] if token else None)


def private(path: Path, text: str) -> Path:
    """A file that only its owner can read."""
    path.write_text(text)
    path.chmod(0o600)
    return path
