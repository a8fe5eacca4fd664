"""The single bearer of Echo: by file or environment, or made once and kept beside the database."""

import os
import secrets
from pathlib import Path

from ingero.config.echo import TOKEN_VARIABLE, token_beside
from ingero.transport.bearer import read_token_file, token_from


def echo_token(file: Path | None, database: Path) -> str:
    """The token to expect; without file and environment one is made, readable by its owner only."""
    given = token_from(file, TOKEN_VARIABLE)
    if given is not None:
        return given
    path = token_beside(database)
    if not path.exists():
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
        with os.fdopen(descriptor, "w") as created:
            created.write(secrets.token_hex(32) + "\n")
    return read_token_file(path)
