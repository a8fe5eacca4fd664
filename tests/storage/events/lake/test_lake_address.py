"""The address of a lake and its secrets: what is unclear is refused with a sentence."""

from pathlib import Path

import pytest

from ingero.config.echo import EchoConfig
from ingero.config.lake import read_lake_secrets
from ingero.errors import AuthError, ConfigError
from ingero.storage.events.lake.address import EXAMPLE, LakeSecrets, parse_lake_address

WHOLE = (
    "ducklake:postgres://echo%20w@db:6432/echo?data=s3://my-bucket/a/b&schema=team_1"
    "&s3_endpoint=s3.local:9000&s3_region=eu-1&s3_tls=false&sslmode=verify-full&sslrootcert=/ca.pem"
)


def test_an_address_says_where_catalogue_and_files_are() -> None:
    found = parse_lake_address(WHOLE)
    assert (found.host, found.port, found.user, found.database) == ("db", 6432, "echo w", "echo")
    assert (found.data, found.schema, found.is_s3) == ("s3://my-bucket/a/b/", "team_1", True)
    assert (found.s3_endpoint, found.s3_region, found.s3_tls) == ("s3.local:9000", "eu-1", False)
    assert (found.ssl_mode, found.ssl_root_certificate) == ("verify-full", "/ca.pem")


def test_the_example_is_whole_and_has_safe_defaults() -> None:
    found = parse_lake_address(EXAMPLE)
    assert (found.port, found.schema, found.s3_tls, found.ssl_mode) == (
        5432,
        "echo",
        True,
        "prefer",
    )


@pytest.mark.parametrize(
    ("address", "complaint"),
    [
        ("postgres://e@db/echo?data=/d", "must begin with ducklake:"),
        ("ducklake:mysql://e@db/echo?data=/d", "must be in PostgreSQL"),
        ("ducklake:postgres://e:secret@db/echo?data=/d", "put that into store_secrets_file"),
        ("ducklake:postgres://db/echo?data=/d", "needs a user, a host and a database"),
        ("ducklake:postgres://e@db?data=/d", "needs a user, a host and a database"),
        ("ducklake:postgres://e@db/echo?data=relative", "data must be s3://BUCKET/PREFIX/"),
        ("ducklake:postgres://e@db/echo?data=/a/../b", "data must be s3://BUCKET/PREFIX/"),
        ("ducklake:postgres://e@db/echo?data=s3://B/", "data must be s3://BUCKET/PREFIX/"),
        ("ducklake:postgres://e@db/echo?data=/d&colour=1", "unknown option 'colour'"),
        ("ducklake:postgres://e@db/echo?data=/d&schema=a;b", "schema 'a;b' may hold"),
        ("ducklake:postgres://e@db/echo?data=/d&sslmode=none", "sslmode is 'none'"),
        ("ducklake:postgres://e@db/echo?data=/d&s3_tls=maybe", "s3_tls is 'maybe'"),
        ("ducklake:postgres://e@db:port/echo?data=/d", "Port could not be cast"),
    ],
)
def test_an_unclear_address_is_refused_with_an_example(address: str, complaint: str) -> None:
    with pytest.raises(ConfigError, match="for example ducklake:") as error:
        parse_lake_address(address)
    assert complaint in str(error.value)
    assert "secret" not in str(error.value).replace("store_secrets_file", "")


def test_secrets_are_read_from_a_private_file_only(tmp_path: Path) -> None:
    file = tmp_path / "lake.yaml"
    file.write_text("password: a\nreader_user: r\nreader_password: b\ns3_key_id: k\ns3_secret: s\n")
    file.chmod(0o644)
    with pytest.raises(AuthError, match="can be read by others"):
        read_lake_secrets(file)
    file.chmod(0o600)
    assert read_lake_secrets(file) == LakeSecrets(
        password="a", reader_user="r", reader_password="b", s3_key_id="k", s3_secret="s"
    )
    file.write_text("pasword: a\n")
    with pytest.raises(ConfigError, match="pasword"):
        read_lake_secrets(file)
    assert read_lake_secrets(None) == LakeSecrets()


def test_the_configuration_checks_the_address_before_anything_starts(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="must begin with ducklake:"):
        EchoConfig(store="s3://bucket", insecure_no_tls=True)
    with pytest.raises(ConfigError, match="belongs to a lake"):
        EchoConfig(store_secrets_file=tmp_path / "x", insecure_no_tls=True)
    config = EchoConfig(store=EXAMPLE, insecure_no_tls=True, db_path=tmp_path / "echo.db")
    assert config.database_limit_bytes() == 0
