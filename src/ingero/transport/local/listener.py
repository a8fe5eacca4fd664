"""Unix sockets to listen on: private folders, their group, and who connects."""

import contextlib
import errno
import grp
import logging
import os
import socket
import stat
import struct
from pathlib import Path

from ingero.errors import AuthError, Unavailable

log = logging.getLogger(__name__)

MAX_WAITING = 32
_CREDENTIALS = struct.Struct("3i")  # pid, uid, gid
_SO_PEERGROUPS = 59
_MAX_GROUPS = 1024


def open_listener(path: Path, gid: int = -1) -> socket.socket:
    """Return a non-blocking listening socket in a directory that only we, or our group, can use.

    Raises AuthError for any other directory, and Unavailable where another process listens.
    """
    _prepare_directory(path.parent, gid)
    _remove_own_socket(path)
    return _bind(path, gid)


def peer_credentials(peer: socket.socket) -> tuple[int, int, int]:
    """Return pid, uid and gid of the peer as the kernel reports them; raise OSError."""
    pid, uid, gid = _CREDENTIALS.unpack(
        peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    )
    return pid, uid, gid


def _prepare_directory(directory: Path, gid: int) -> None:
    """Create the directory, or check that it is ours and that others cannot write to it.

    Only a directory created here is opened to the group; a present one keeps owner, group and mode.
    """
    is_new = not directory.exists()
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = directory.lstat()
    if not stat.S_ISDIR(status.st_mode):
        raise AuthError(
            f"{directory} is not a directory (a link?); choose another path for the socket"
        )
    if status.st_uid not in (os.geteuid(), 0):
        raise AuthError(
            f"{directory} belongs to user {status.st_uid}; "
            "choose a directory you own for the socket"
        )
    if status.st_mode & 0o022 and not status.st_mode & stat.S_ISVTX:
        raise AuthError(
            f"others may write to {directory}; run `chmod go-w {directory}` or choose another path"
        )
    if gid >= 0 and is_new:
        with contextlib.suppress(OSError):  # without permission, the group cannot use the socket
            os.chown(directory, -1, gid)
            directory.chmod(0o750)


def _remove_own_socket(path: Path) -> None:
    try:
        status = path.lstat()
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(status.st_mode):
        raise AuthError(f"{path} exists and is not a socket; move it away or choose another path")
    if status.st_uid != os.geteuid():
        raise AuthError(f"{path} is a socket of user {status.st_uid}; choose another path")
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()  # left by a process that has ended
        except OSError as error:
            raise Unavailable(f"cannot tell whether {path} is in use: {error.strerror}") from None
        else:
            raise Unavailable(
                f"another process listens on {path}; stop it or give each agent its own path"
            )


def _bind(path: Path, gid: int) -> socket.socket:
    listener = socket.socket(socket.AF_UNIX)
    before = os.umask(0o077)  # private from the start; opened to the group afterwards
    try:
        listener.bind(str(path))
        listener.listen(MAX_WAITING)  # at once, because clients may connect as soon as it exists
    except OSError as error:
        listener.close()
        reason = (
            "the path is too long"
            if error.errno == errno.ENAMETOOLONG or not error.errno
            else error.strerror
        )
        raise Unavailable(f"cannot listen on {path}: {reason}") from None
    finally:
        os.umask(before)
    mode = 0o700
    if gid >= 0:
        try:
            os.chown(path, -1, gid)
            mode = 0o770
        except OSError:
            log.warning(
                "socket_group_refused",
                extra={"path": str(path), "gid": gid, "group": _group_name(gid)},
            )
    path.chmod(mode)
    listener.setblocking(False)
    return listener


def peer_groups(peer: socket.socket) -> tuple[int, ...]:
    """Return the groups of the process at the other end."""
    try:
        data = peer.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, 4 * _MAX_GROUPS)
    except OSError:
        return ()
    return struct.unpack(f"{len(data) // 4}I", data[: len(data) // 4 * 4])


def _group_name(gid: int) -> str:
    try:
        return grp.getgrgid(gid).gr_name
    except KeyError:
        return str(gid)
