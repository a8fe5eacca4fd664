"""Identity of this node: name, cgroup, cloud provider; read from files, not from the network."""

import functools
import hashlib
import os
import re
import socket
from pathlib import Path

_CONTAINER_ID = re.compile(r"[0-9a-f]{64}")
_PROVIDERS = (("amazon", "aws"), ("google", "gcp"))
# the same on every Azure machine, absent on plain Hyper-V
_AZURE_ASSET_TAG = "7783-7084-3265-9085-8269-3286-77"
NODE_VARIABLE = "INGERO_NODE"
PROC = Path("/proc")
DMI = Path("/sys/class/dmi/id")


def default_node() -> str:
    """Return the name that the environment gives to this node, else the host name."""
    return os.environ.get(NODE_VARIABLE) or socket.gethostname() or "localhost"


def parse_cgroup_path(text: str) -> str:
    """Return the path in a /proc/PID/cgroup file; empty when there is none.

    The v2 line is preferred, else the longest v1 path.
    """
    paths = []
    for line in text.split("\n"):
        hierarchy, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if not colon:
            continue
        if hierarchy == "0" and not controllers:
            return path
        paths.append(path)
    return max(paths, key=len, default="")


def hash_cgroup_path(path: str) -> str:
    """Return sixteen hex digits to join series by (not a secret); empty for an empty path."""
    return hashlib.sha256(path.encode()).hexdigest()[:16] if path else ""


def cgroup_hash(pid: int | str = "self", proc: Path = PROC) -> str:
    """Return the hash of the cgroup of a process; empty when it is gone."""
    try:
        return hash_cgroup_path(
            parse_cgroup_path((proc / str(pid) / "cgroup").read_text(errors="replace"))
        )
    except OSError:
        return ""


def container_id(path: str) -> str:
    """Return the last container id in a cgroup path; empty when there is none."""
    found = _CONTAINER_ID.findall(path)
    return found[-1] if found else ""


@functools.cache
def provider(dmi: Path = DMI) -> str | None:
    """Return `aws`, `gcp` or `azure` as stated by the firmware; None elsewhere."""
    vendor = _read(dmi / "sys_vendor").lower()
    for word, name in _PROVIDERS:
        if word in vendor:
            return name
    return "azure" if _read(dmi / "chassis_asset_tag") == _AZURE_ASSET_TAG else None


def _read(path: Path) -> str:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return ""
