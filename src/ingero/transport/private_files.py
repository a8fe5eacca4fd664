"""Secrets in files: refused where anybody but their owner can read them."""

import os
import stat
from pathlib import Path

from ingero.errors import AuthError


def check_private_file(path: Path, what: str) -> None:
    """Raise AuthError for a missing file, a directory, or a file that group or others may read."""
    try:
        status = path.stat()
    except OSError as error:
        raise AuthError(f"cannot read {what} {path}: {error.strerror}") from None
    if not stat.S_ISREG(status.st_mode):
        raise AuthError(f"{what} {path} is not a regular file")
    loose = stat.S_IMODE(status.st_mode) & 0o077
    if loose and os.environ.get("INGERO_TLS_ALLOW_LOOSE_KEY_PERMS") != "1":
        raise AuthError(f"{what} {path} can be read by others; run `chmod 600 {path}`")
