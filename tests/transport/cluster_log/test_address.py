"""Addresses of cluster logs."""

import pytest

from ingero.errors import ConfigError
from ingero.transport.cluster_log.address import LogAddress, parse_log_address


@pytest.mark.parametrize(
    ("url", "address"),
    [
        ("valkey://h", LogAddress((("h", 6379),), False)),
        ("redis://h:7000/3", LogAddress((("h", 7000),), False, 3)),
        ("valkeys://[::1]:7000", LogAddress((("::1", 7000),), True)),
        ("valkeys://[::1]", LogAddress((("::1", 6379),), True)),
        (
            "valkey+sentinel://a,b:9/fleet",
            LogAddress((("a", 26379), ("b", 9)), False, 0, "fleet"),
        ),
        ("rediss+sentinel://a/m", LogAddress((("a", 26379),), True, 0, "m")),
    ],
)
def test_addresses(url: str, address: LogAddress) -> None:
    assert parse_log_address(url) == address


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://h", "no address of a cluster log"),
        ("valkey", "no address of a cluster log"),
        ("valkey+cluster://h", "no address of a cluster log"),
        ("valkey://user:secret@h", "holds no secrets"),
        ("valkey://h?db=1", "has options"),
        ("valkey://a,b", "several hosts need Sentinel"),
        ("valkey://h:0", "no host and port"),
        ("valkey://", "no host and port"),
        ("valkey://h/x", "no number of a database"),
        ("valkey+sentinel://a,b", "name of the primary is missing"),
    ],
)
def test_wrong_addresses_say_why(url: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why) as refused:
        parse_log_address(url)
    assert "secret@" not in str(refused.value)
