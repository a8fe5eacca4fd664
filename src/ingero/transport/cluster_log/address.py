"""The address of a cluster log: `valkey://host:6379`, with TLS `valkeys://`, or by Sentinel."""

from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from ingero.errors import ConfigError

VALKEY_PORT: Final = 6379
SENTINEL_PORT: Final = 26379
_SCHEMES: Final = {"valkey", "valkeys", "redis", "rediss"}
EXAMPLES: Final = (
    "valkey://HOST:6379, valkeys://HOST:6379 (TLS), or "
    "valkey+sentinel://HOST1:26379,HOST2:26379,HOST3:26379/NAME"
)


@dataclass(frozen=True, slots=True)
class LogAddress:
    """Where the log is; with a `sentinel_name` the hosts are Sentinels that know its primary."""

    hosts: tuple[tuple[str, int], ...]
    is_tls: bool
    database: int = 0
    sentinel_name: str = ""


def parse_log_address(url: str) -> LogAddress:
    """Read the setting; raise ConfigError. User and password are settings of their own."""
    scheme, separator, _ = url.partition("://")
    kind, _, by = scheme.partition("+")
    if not separator or kind not in _SCHEMES or by not in ("", "sentinel"):
        raise ConfigError(f"{_shown(url)!r} is no address of a cluster log; allowed: {EXAMPLES}")
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise ConfigError("an address holds no secrets; use `user` and `password_file`")
    if parts.query or parts.fragment:
        raise ConfigError(f"{_shown(url)!r} has options; allowed: {EXAMPLES}")
    default = SENTINEL_PORT if by else VALKEY_PORT
    hosts = tuple(_host(each, default) for each in parts.netloc.split(","))
    path, is_tls = parts.path.strip("/"), kind in ("valkeys", "rediss")
    if by:
        if not path or "/" in path:
            raise ConfigError(f"the name of the primary is missing; for example {EXAMPLES}")
        return LogAddress(hosts, is_tls, 0, path)
    if len(hosts) > 1:
        raise ConfigError("several hosts need Sentinel: valkey+sentinel://HOST1,HOST2,HOST3/NAME")
    if path and not (path.isascii() and path.isdigit() and int(path) < 16384):
        raise ConfigError(f"{path!r} is no number of a database")
    return LogAddress(hosts, is_tls, int(path or 0))


def _host(text: str, default_port: int) -> tuple[str, int]:
    host, separator, port = text.rpartition(":") if not text.endswith("]") else (text, "", "")
    if not separator:
        host, port = text, str(default_port)
    host = host.removeprefix("[").removesuffix("]")
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) < 65536):
        raise ConfigError(f"{text!r} is no host and port; allowed: {EXAMPLES}")
    return host, int(port)


def _shown(url: str) -> str:
    """Return the address without what may be a password."""
    before, separator, after = url.rpartition("@")
    return f"{before.partition('://')[0]}://…@{after}" if separator else url
