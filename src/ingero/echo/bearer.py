"""The bearer of the OTLP listener: by file or environment, or made once and kept beside the database."""

import os
import secrets
from pathlib import Path
from typing import Final

from ingero.transport.auth import read_token_file, token_from

TOKEN_VARIABLE: Final = "INGERO_ECHO_TOKEN"  # noqa: S105 - the name of a variable, not a token


def kept_token_file(database: Path) -> Path:
    """Where a token made by Echo lies."""
    return database.with_name(database.name + ".token")


def echo_token(file: Path | None, database: Path) -> str:
    """The token to expect; without file and environment one is made, readable by its owner only."""
    given = token_from(file, TOKEN_VARIABLE)
    if given is not None:
        return given
    path = kept_token_file(database)
    if not path.exists():
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w") as created:
            created.write(secrets.token_hex(32) + "\n")
    return read_token_file(path)
