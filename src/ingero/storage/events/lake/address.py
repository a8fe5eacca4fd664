"""The address of a lake: which PostgreSQL holds the catalogue, and where the files lie.

    ducklake:postgres://USER@HOST:PORT/DATABASE?data=s3://BUCKET/PREFIX/&s3_endpoint=HOST:PORT

Secrets never stand in an address, because addresses appear in logs and process lists. They come
from a file of their own (`config/lake.py`).
"""

import re
from dataclasses import dataclass
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

from ingero.errors import ConfigError

SCHEME: Final = "ducklake:"
EXAMPLE: Final = "ducklake:postgres://echo@db.example:5432/echo?data=s3://bucket/prefix/"
_DEFAULT_PORT: Final = 5432
_OPTIONS: Final = frozenset(
    {"data", "schema", "s3_endpoint", "s3_region", "s3_tls", "sslmode", "sslrootcert"}
)
# what PostgreSQL takes without quotes; it stands in statements of ours
_SCHEMA: Final = re.compile(r"[a-z_][a-z0-9_]{0,40}")
_PASSWORD: Final = re.compile(r":[^/@]*@")  # never said again
# Either side notices within half a minute that the other one's host has vanished: Echo says so and
# connects anew, PostgreSQL gives up the locks of that Echo.
_NOTICING: Final = {
    "connect_timeout": "10",
    "keepalives_idle": "10",
    "keepalives_interval": "5",
    "keepalives_count": "4",
    "tcp_user_timeout": "30000",
    "options": "-c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=4",
}
_SSL_MODES: Final = ("disable", "allow", "prefer", "require", "verify-ca", "verify-full")


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeAddress:
    """What an address says."""

    host: str
    port: int
    user: str
    database: str
    data: str
    schema: str = "echo"
    s3_endpoint: str = ""
    s3_region: str = "us-east-1"
    s3_tls: bool = True
    ssl_mode: str = "prefer"
    ssl_root_certificate: str = ""

    @property
    def is_s3(self) -> bool:
        """Whether files lie in object storage, not in a folder that all replicas mount."""
        return self.data.startswith("s3://")

    def catalogue(self, name: str) -> dict[str, str]:
        """Return how to connect to PostgreSQL as `name`, without a role, in its own words."""
        where = {
            "host": self.host,
            "port": str(self.port),
            "dbname": self.database,
            "sslmode": self.ssl_mode,
            "application_name": name,
            **_NOTICING,
        }
        if self.ssl_root_certificate:
            where["sslrootcert"] = self.ssl_root_certificate
        return where


@dataclass(frozen=True, slots=True, kw_only=True)
class LakeSecrets:
    """What the file of secrets holds.

    The reader is a role of PostgreSQL that may only SELECT. Without one, readers attach as the
    writer does, and only DuckDB keeps them from writing.
    """

    password: str = ""
    reader_user: str = ""
    reader_password: str = ""
    s3_key_id: str = ""
    s3_secret: str = ""


def parse_lake_address(text: str) -> LakeAddress:
    """Return what an address says; raise ConfigError naming what is wrong."""
    try:
        return _parsed(text)
    except ValueError as error:
        shown = _PASSWORD.sub(":…@", text)
        raise ConfigError(f"store {shown!r}: {error}; for example {EXAMPLE}") from None


def _parsed(text: str) -> LakeAddress:
    if not text.startswith(SCHEME):
        raise ValueError(f"it must begin with {SCHEME}")
    url = urlsplit(text.removeprefix(SCHEME))
    if url.scheme not in ("postgres", "postgresql"):
        raise ValueError("the catalogue must be in PostgreSQL")
    if url.password:
        raise ValueError("it holds a password; put that into store_secrets_file")
    database = unquote(url.path.strip("/"))
    if not (url.hostname and url.username and database):
        raise ValueError("it needs a user, a host and a database")
    options = dict(parse_qsl(url.query, strict_parsing=True, max_num_fields=20))
    unknown = sorted(options.keys() - _OPTIONS)
    if unknown:
        raise ValueError(f"unknown option {unknown[0]!r}; there are {', '.join(sorted(_OPTIONS))}")
    return LakeAddress(
        host=url.hostname,
        port=url.port or _DEFAULT_PORT,
        user=unquote(url.username),
        database=database,
        data=_data(options.get("data", "")),
        schema=_matching("schema", options.get("schema", "echo"), _SCHEMA),
        s3_endpoint=options.get("s3_endpoint", ""),
        s3_region=options.get("s3_region", "us-east-1"),
        s3_tls=_one_of("s3_tls", options.get("s3_tls", "true"), ("true", "false")) == "true",
        ssl_mode=_one_of("sslmode", options.get("sslmode", "prefer"), _SSL_MODES),
        ssl_root_certificate=options.get("sslrootcert", ""),
    )


def _data(text: str) -> str:
    is_bucket = re.fullmatch(r"s3://[a-z0-9.-]{3,63}(/.*)?", text) is not None
    if not (is_bucket or text.startswith("/")) or ".." in text.split("/"):
        raise ValueError("data must be s3://BUCKET/PREFIX/ or the absolute path of a folder")
    return text.rstrip("/") + "/"


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise ValueError(f"{name} is {value!r}; it may be {', '.join(choices)}")
    return value


def _matching(name: str, value: str, pattern: re.Pattern[str]) -> str:
    if not pattern.fullmatch(value):
        raise ValueError(f"{name} {value!r} may hold lower-case letters, digits and _")
    return value
