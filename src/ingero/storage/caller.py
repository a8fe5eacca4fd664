"""The person who called: under sudo, their home and their files instead of those of root."""

import contextlib
import os
import pwd
from pathlib import Path
from typing import Final

SYSTEM_STATE: Final = Path("/var/lib/ingero")


def caller() -> pwd.struct_passwd:
    """Return the user who called; under sudo that is not root."""
    uid, gid = os.geteuid(), os.getegid()
    ids = [os.environ.get(name, "") for name in ("SUDO_UID", "SUDO_GID")]
    if uid == 0 and ids[0].isdigit():
        uid, gid = (int(each) if each.isdigit() else gid for each in ids)
    try:
        return pwd.getpwuid(uid)
    except KeyError:  # a uid in a container may have no name, a user directory may be unreachable
        home = os.environ.get("HOME", "/")
        return pwd.struct_passwd((str(uid), "x", uid, gid, "", home, "/bin/sh"))


def home() -> Path:
    """Return the home of the caller: $HOME, unless sudo has changed it to the home of root."""
    if os.environ.get("SUDO_UID", "").isdigit() and os.geteuid() == 0:
        return Path(caller().pw_dir)
    return Path(os.environ.get("HOME") or caller().pw_dir)


def state_folder() -> Path:
    """Return where an agent keeps its state: a system folder for root, else in the home folder."""
    return SYSTEM_STATE if os.geteuid() == 0 else home() / ".local" / "state" / "ingero"


def give_to_caller(path: Path) -> None:
    """Under sudo, make the caller the owner of a file or folder; links are not followed."""
    if os.geteuid() != 0 or not os.environ.get("SUDO_UID", "").isdigit():
        return
    owner = caller()
    with contextlib.suppress(FileNotFoundError):
        os.chown(path, owner.pw_uid, owner.pw_gid, follow_symlinks=False)
