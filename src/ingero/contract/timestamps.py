"""Times as text: RFC 3339 in UTC."""

import datetime


def rfc3339(unix_ns: int) -> str:
    """Return a time to the second, such as `2026-11-15T02:32:37Z`."""
    moment = datetime.datetime.fromtimestamp(unix_ns // 10**9, datetime.UTC)
    return f"{moment:%Y-%m-%dT%H:%M:%S}Z"


def rfc3339_ns(unix_ns: int) -> str:
    """Return a time to the nanosecond, such as `2026-11-15T02:32:37.298798752Z`."""
    return f"{rfc3339(unix_ns)[:-1]}.{unix_ns % 10**9:09d}Z"
