"""Who may ask and send: the sources of Echo's bearer tokens."""

from pathlib import Path

from ingero.config.echo import TOKEN_VARIABLE, token_beside
from ingero.transport.bearer import (
    Key,
    check_distinct,
    kept_token,
    keys_from,
    read_keys,
    single_key,
)


def echo_keys(token_file: Path | None, acl_file: Path | None, database: Path) -> list[Key]:
    """Return all valid tokens; without any source, create one and keep it beside the database."""
    given = keys_from(token_file, TOKEN_VARIABLE)
    if acl_file is not None:
        keys = [*read_keys(acl_file, "ACL file"), *(given or ())]
        check_distinct(keys, f"ACL file {acl_file}")
        return keys
    if given is not None:
        return given
    kept = token_beside(database)
    return [single_key(kept_token(kept), f"token file {kept}")]
