"""The path of the trace database that every command on a node uses."""

import os
from pathlib import Path

from ingero.storage.caller import home

PATH_VARIABLE = "INGERO_DB"


def default_path() -> Path:
    """Return the path in `$INGERO_DB`, else `~/.ingero/ingero.db` of the caller."""
    given = os.environ.get(PATH_VARIABLE)
    return Path(given) if given else home() / ".ingero" / "ingero.db"
