"""The secrets of a lake: a small YAML file that only its owner can read."""

from pathlib import Path

from ingero.config.loader import load_file
from ingero.storage.events.lake.address import LakeSecrets
from ingero.transport.private_files import check_private_file


def read_lake_secrets(path: Path | None) -> LakeSecrets:
    """Return the secrets in a file, none without a file; raise AuthError or ConfigError."""
    if path is None:
        return LakeSecrets()
    check_private_file(path, "store_secrets_file")
    return load_file(LakeSecrets, path)
