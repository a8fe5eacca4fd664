"""Who may ask and send: the files and the variable that hold Echo's bearer tokens."""

from pathlib import Path
from typing import Final

import msgspec
import yaml

from ingero.config.echo import TOKEN_VARIABLE, token_beside
from ingero.errors import AuthError
from ingero.transport.bearer import Key, kept_token, token_digest, token_from
from ingero.transport.private_files import check_private_file

MAX_ACL_BYTES: Final = 1 << 20
MAX_KEYS: Final = 1_000
MIN_TOKEN_LENGTH: Final = 16
DEFAULT_KEY: Final = "default"  # the single token of --auth-token-file


class _AclEntry(msgspec.Struct, forbid_unknown_fields=True):
    key_name: str
    token: str
    allowed_clusters: list[str] = []


def read_keys(token_file: Path | None, acl_file: Path | None, database: Path) -> list[Key]:
    """Return all valid tokens; without any source, create one and keep it beside the database."""
    if acl_file is None:
        token = token_from(token_file, TOKEN_VARIABLE) or kept_token(token_beside(database))
        return [Key(DEFAULT_KEY, token_digest(token))]
    keys = read_acl(acl_file)
    single = token_from(token_file, TOKEN_VARIABLE)
    if single is not None:
        keys.append(Key(DEFAULT_KEY, token_digest(single)))
    _check_distinct(keys, acl_file)
    return keys


def read_acl(path: Path) -> list[Key]:
    """Return the tokens of an ACL file (YAML or JSON); errors name the entry, never a token."""
    check_private_file(path, "ACL file")
    data = path.read_bytes()[: MAX_ACL_BYTES + 1]
    if len(data) > MAX_ACL_BYTES:
        raise AuthError(f"ACL file {path} is larger than {MAX_ACL_BYTES} bytes")
    try:
        entries = msgspec.convert(yaml.safe_load(data), list[_AclEntry])
    except yaml.YAMLError as error:
        # the text of the YAML error would quote the file
        mark = getattr(error, "problem_mark", None)
        raise AuthError(
            f"ACL file {path}{f' line {mark.line + 1}' if mark else ''}: not valid YAML or JSON"
        ) from None
    except msgspec.ValidationError as error:
        raise AuthError(
            f"ACL file {path}: {error}; expected a list of key_name, token, allowed_clusters"
        ) from None
    if not entries or len(entries) > MAX_KEYS:
        raise AuthError(f"ACL file {path} has {len(entries)} entries; 1 to {MAX_KEYS} are allowed")
    for number, entry in enumerate(entries, 1):
        if (
            len(entry.token) < MIN_TOKEN_LENGTH
            or not entry.token.isprintable()
            or " " in entry.token
        ):
            raise AuthError(
                f"ACL file {path}: the token of entry {number} must be at least {MIN_TOKEN_LENGTH} "
                "characters without spaces; `openssl rand -hex 32` makes one"
            )
        if not entry.key_name:
            raise AuthError(f"ACL file {path}: entry {number} has an empty key_name")
    return [
        Key(entry.key_name, token_digest(entry.token), frozenset(entry.allowed_clusters) or None)
        for entry in entries
    ]


def _check_distinct(keys: list[Key], path: Path) -> None:
    for what, values in (
        ("key_name", [key.name for key in keys]),
        ("token", [key.digest for key in keys]),
    ):
        if len(set(values)) < len(values):
            raise AuthError(f"ACL file {path}: two entries have the same {what}")
