"""What `--version` shows: release, build, compiled parts, and the versions of what is exchanged."""

from importlib.metadata import version
from importlib.resources import files

BUILD_FILE = "build.txt"  # written into wheels: the commit that they were made from


def version_text(command: str = "ingero") -> str:
    """Return the lines that every command of ours prints for --version."""
    from ingero.compiled import describe_parts

    return f"{command} {version('ingero')}\nbuild: {_build()}\n{describe_parts()}\n{_schemas()}"


def _build() -> str:
    file = files("ingero") / BUILD_FILE
    return file.read_text().strip() if file.is_file() else "from a checkout"


def _schemas() -> str:
    """Return the versions by which two releases can tell whether they understand each other."""
    from ingero.contract.names import HEALTH_SCOPE_VERSION
    from ingero.contract.nccl_ring import VERSION as RING_VERSION
    from ingero.storage.events.migrate import SCHEMA_VERSION as ECHO_VERSION
    from ingero.storage.trace.schema import OWN_VERSION, USER_VERSION

    return (
        f"schemas: push {HEALTH_SCOPE_VERSION}, trace database {USER_VERSION}.{OWN_VERSION}, "
        f"Echo's database {ECHO_VERSION}, NCCL ring {RING_VERSION}"
    )
