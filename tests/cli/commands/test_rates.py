"""`ingero rates`: show, check, and an update that never leaves a bad file behind."""

import hashlib
import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import trustme

from ingero.cli.dispatch import run

TABLE = (
    b"currency_name: USD\ncurrency_symbol: $\nfallback_rate: 0\n"
    b"providers: {onprem: {NVIDIA H200: 1.8}}\n"
)


class Prices(BaseHTTPRequestHandler):
    """`/ok` is a table, `/bad` is not, `/big` is too long, `/away` leads to plain HTTP."""

    def do_GET(self) -> None:
        body = {"/ok": TABLE, "/bad": TABLE.replace(b"1.8", b"-1"), "/big": b"#" * (2 << 20)}.get(
            self.path, b""
        )
        self.send_response(302 if self.path == "/away" else 200)
        if self.path == "/away":
            self.send_header("Location", "http://127.0.0.1:9/ok")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def prices(tmp_path: Path) -> Iterator[tuple[str, str]]:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    server = HTTPServer(("127.0.0.1", 0), Prices)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"https://127.0.0.1:{server.server_port}", str(tmp_path / "ca.pem")
    server.shutdown()
    server.server_close()
    thread.join(5)


def test_show_lists_every_rate(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["rates", "show", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["providers"], shown["models"]) == (5, 16)
    assert run(["rates", "show"]) == 0
    assert "NVIDIA GH200 480GB" in capsys.readouterr().out


def test_check_prints_the_digest(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "r.yaml"
    path.write_bytes(TABLE)
    assert run(["rates", "check", str(path)]) == 0
    assert hashlib.sha256(TABLE).hexdigest() in capsys.readouterr().out
    path.write_bytes(TABLE.replace(b"1.8", b"-1"))
    assert run(["rates", "check", str(path)]) == 1
    assert "is not a rate" in capsys.readouterr().err


def test_update_replaces_the_file_when_digest_and_content_are_right(
    prices: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "gpu_rates.yaml"
    digest = hashlib.sha256(TABLE).hexdigest()
    base, authority = prices
    args = ["--output", str(out), "--ca-cert", authority, "--sha256", digest, "--json"]
    assert run(["rates", "update", "--url", f"{base}/ok", *args]) == 0
    assert out.read_bytes() == TABLE
    assert json.loads(capsys.readouterr().out)["sha256"] == digest


@pytest.mark.parametrize(
    ("path", "digest", "complaint"),
    [
        ("/bad", None, "is not a rate"),
        ("/big", None, "larger than 1048576 bytes"),
        ("/away", None, "is not an https address"),
        ("/ok", "00", "is unchanged"),
    ],
)
def test_update_leaves_the_old_file_when_anything_is_wrong(
    prices: tuple[str, str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    path: str,
    digest: str | None,
    complaint: str,
) -> None:
    out = tmp_path / "gpu_rates.yaml"
    out.write_text("old")
    base, authority = prices
    pin = ["--sha256", digest] if digest else []
    assert (
        run(
            [
                "rates",
                "update",
                "--url",
                base + path,
                "--output",
                str(out),
                "--ca-cert",
                authority,
                *pin,
            ]
        )
        == 1
    )
    assert complaint in capsys.readouterr().err
    assert out.read_text() == "old"
    assert [file.name for file in tmp_path.iterdir() if file.name.startswith(".")] == []


def test_v25_plain_http_is_refused_before_any_connection(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run(["rates", "update", "--url", "http://127.0.0.1:1/x"]) == 1
    assert "is not an https address" in capsys.readouterr().err


def test_update_into_a_missing_folder_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert (
        run(
            [
                "rates",
                "update",
                "--url",
                "https://127.0.0.1:1/x",
                "--output",
                str(tmp_path / "no" / "f"),
            ]
        )
        == 2
    )
    assert "is not a folder" in capsys.readouterr().err
