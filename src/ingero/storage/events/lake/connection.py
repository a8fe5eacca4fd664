"""DuckDB attached to a lake: extensions from installed packages, secrets, and a closed sandbox."""

import contextlib
import importlib.util
import re
from pathlib import Path
from typing import Final

import duckdb

from ingero.errors import StoreError
from ingero.storage.events.file_store import SAFE_SETTINGS
from ingero.storage.events.lake.address import LakeAddress, LakeSecrets
from ingero.storage.events.migrate import literal
from ingero.storage.events.store import first_line

NAME: Final = "lake"  # under which the lake is attached
_EXTENSIONS: Final = ("ducklake", "postgres_scanner", "httpfs")
_HTTP_STATUS: Final = re.compile(r"HTTP (?:code )?([45]\d\d)")
# what DuckDB asked PostgreSQL for, in quotes; it says nothing to an operator
_STATEMENT: Final = re.compile(r' "(?:COPY|SELECT|INSERT|UPDATE|DELETE|BEGIN|COMMIT|ROLLBACK)\b.*"')
_RETRIES: Final = 100  # a commit that meets another one is tried again this often


def attach(
    address: LakeAddress,
    secrets: LakeSecrets,
    *,
    read_only: bool,
    memory_bytes: int,
    threads: int,
    session: str = "ingero-echo",
    also_read: Path | None = None,
) -> duckdb.DuckDBPyConnection:
    """Return a connection that reaches the lake and nothing else; raise StoreError.

    PostgreSQL knows its connections as `session`. With `also_read`, a database file is attached as
    `file` for reading.
    """
    if not address.is_s3:
        Path(address.data).mkdir(mode=0o700, parents=True, exist_ok=True)
    connection = duckdb.connect(
        config={
            "memory_limit": f"{memory_bytes // 1024}KiB",
            "threads": threads,
            "autoinstall_known_extensions": False,
            "autoload_known_extensions": False,
        }
    )
    try:
        for name in _EXTENSIONS:
            connection.execute(f"LOAD {literal(str(extension_file(name)))}")
        for statement in _statements(address, secrets, session, read_only=read_only):
            connection.execute(statement)
        if also_read is not None:
            connection.execute(f"ATTACH {literal(str(also_read))} AS file (READ_ONLY)")
        for statement in (f"SET allowed_directories = [{literal(address.data)}]", *SAFE_SETTINGS):
            connection.execute(statement)
    except duckdb.Error as error:
        connection.close()
        raise StoreError(
            f"cannot open the lake of {address.host}:{address.port}: {first_line(error)}"
        ) from None
    except BaseException:
        connection.close()
        raise
    return connection


def describe_failure(error: duckdb.Error) -> str:
    """Return in one sentence which engine of a lake failed, and what to look at."""
    line = _STATEMENT.sub("", " ".join(str(error).split()))
    status = _HTTP_STATUS.search(line)
    if status is None:
        return f"the lake does not answer: {line}"
    if status[1].startswith("4"):
        return (
            f"the object storage refuses a request: {line}; the bucket is in the address of the "
            "lake, its keys are in store_secrets_file"
        )
    return f"the object storage fails, it may be full: {line}"


def extension_file(name: str) -> Path:
    """Return the file of an extension that was installed as a Python package."""
    package = f"duckdb_extension_{name}"
    found = importlib.util.find_spec(package)
    folders = list(found.submodule_search_locations or ()) if found else []
    file = Path(*folders[:1], "extensions", f"v{duckdb.__version__}", f"{name}.duckdb_extension")
    if not folders or not file.is_file():
        raise StoreError(
            f"a lake needs {package.replace('_', '-')} {duckdb.__version__}: run `pip install "
            "'ingero[lake]'`"
        )
    return file


def close(connection: duckdb.DuckDBPyConnection) -> None:
    """Close a connection, also while PostgreSQL is gone.

    A transaction that is still open would be rolled back by a destructor, and DuckDB aborts the
    process if PostgreSQL does not answer that. A failed ROLLBACK is an error like others.
    """
    with contextlib.suppress(duckdb.Error):  # also where no transaction is open
        connection.execute("ROLLBACK")
    connection.close()


def _statements(
    address: LakeAddress, secrets: LakeSecrets, session: str, *, read_only: bool
) -> list[str]:
    as_reader = read_only and secrets.reader_user
    user, password = (
        (secrets.reader_user, secrets.reader_password)
        if as_reader
        else (address.user, secrets.password)
    )
    given = f", PASSWORD {literal(password)}" if password else ""
    statements = [f"CREATE SECRET catalogue (TYPE postgres, USER {literal(user)}{given})"]
    if address.is_s3:
        options = {
            "KEY_ID": literal(secrets.s3_key_id),
            "SECRET": literal(secrets.s3_secret),
            "REGION": literal(address.s3_region),
            "USE_SSL": str(address.s3_tls).lower(),
            "SCOPE": literal(address.data),
        }
        if address.s3_endpoint:
            options |= {"ENDPOINT": literal(address.s3_endpoint), "URL_STYLE": "'path'"}
        listed = ", ".join(f"{name} {value}" for name, value in options.items())
        statements.append(f"CREATE SECRET files (TYPE s3, {listed})")
    mode = "READ_ONLY" if read_only else "DATA_INLINING_ROW_LIMIT 0"  # see migrate_lake
    return [
        *statements,
        "CREATE SECRET lake (TYPE ducklake, "
        f"METADATA_PATH {literal(_server(address, session))}, DATA_PATH {literal(address.data)}, "
        f"METADATA_SCHEMA {literal(address.schema)}, "
        "METADATA_PARAMETERS MAP {'TYPE': 'postgres', 'SECRET': 'catalogue'})",
        f"SET ducklake_max_retry_count = {_RETRIES}",
        f"ATTACH 'ducklake:lake' AS {NAME} ({mode})",
        f"USE {NAME}",
    ]


def _server(address: LakeAddress, session: str) -> str:
    """Return where PostgreSQL is, in its own notation."""
    quoted = {
        name: value.replace("\\", "\\\\").replace("'", "\\'")
        for name, value in address.catalogue(session).items()
    }
    return " ".join(f"{name}='{value}'" for name, value in quoted.items())
