"""Requests to Echo that are small on the wire and huge when decoded."""

import gzip
from pathlib import Path

import pytest
from tests.support.echo_samples import metrics_body
from tests.support.echo_service import TOKEN, RunningEcho
from tests.support.hostile_bodies import nested

from ingero.contract.names import PROTOBUF_TYPE


@pytest.mark.parametrize("path", ["metrics", "traces", "logs"])
def test_floods_of_empty_messages_are_refused(tmp_path: Path, path: str) -> None:
    """They hold more than may be sent, decompressed or decoded."""
    headers = {"Content-Type": PROTOBUF_TYPE}
    with RunningEcho(tmp_path) as echo:
        url = echo.url(f"/v1/{path}", "http")
        for tags in (b"", b"\x0a", b"\x0a\x12", b"\x0a\x0a"):
            body = nested(tags, (b"\x12\x00" if tags else b"\x0a\x00") * 4_000_000)
            packed = {**headers, "Content-Encoding": "gzip"}
            assert echo.call(url, body, TOKEN, headers).status == 413
            assert echo.call(url, gzip.compress(body, 9), TOKEN, packed).status == 413
        assert echo.send(metrics_body()).status == 200
