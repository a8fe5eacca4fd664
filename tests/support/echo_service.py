"""An Echo inside the test process, on a thread with its own loop, asked over its real sockets."""

import asyncio
import gzip
import json
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.support.stores import ON_LAKE, store_settings
from tests.support.waiting import PATIENCE_S

from ingero.config.echo import EchoConfig
from ingero.echo.app import EchoService

TOKEN = "all-clusters-token-0123456789abcdef"
ADDRESSES = ("otlp_addr", "otlp_http_addr", "mcp_addr", "health_addr")


class Reply:
    """Status, headers and body of an answer; JSON on demand."""

    def __init__(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        self.status = status
        self.headers = {name.lower(): value for name, value in headers.items()}
        self.body = (
            gzip.decompress(body) if self.headers.get("content-encoding") == "gzip" else body
        )

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> str:
        return str(self.json["error"]["code"])


class RunningEcho:
    """`with RunningEcho(folder) as echo:` serves until the end of the block."""

    def __init__(self, folder: Path, **settings: Any) -> None:
        token = folder / "token"
        token.write_text(TOKEN)
        token.chmod(0o600)
        addresses = dict.fromkeys(ADDRESSES, "127.0.0.1:0")
        base = {"auth_token_file": token, "db_path": folder / "echo.db", "insecure_no_tls": True}
        where = store_settings(folder / "echo.db") if ON_LAKE else {}
        if where:
            base |= {"store": where["lake"], "store_secrets_file": where["lake_secrets"]}
        self.service = EchoService(EchoConfig(**{**addresses, **base, **settings}))
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)

    def run(self, coroutine: Any, timeout_s: float = 2 * PATIENCE_S) -> Any:
        """Run something inside the service's loop."""
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(timeout_s)

    def url(self, path: str = "", listener: str = "mcp") -> str:
        return f"http://{self.service.addresses[listener]}{path}"

    def send(self, body: bytes, kind: str = "metrics", token: str = TOKEN) -> Reply:
        """OTLP protobuf, answered once it can be queried."""
        headers = {"Content-Type": "application/x-protobuf", "X-Ingero-Wait": "1"}
        return self.call(self.url(f"/v1/{kind}", "http"), body, token, headers)

    def ask(self, tool: str, token: str | None = TOKEN, **arguments: Any) -> Reply:
        name = tool if "." in tool else f"fleet.cluster.{tool}"
        return self.call(self.url(f"/api/v2/tools/{name}"), json.dumps(arguments).encode(), token)

    def answer(self, tool: str, **arguments: Any) -> Any:
        """The data of an answer that must not be refused."""
        reply = self.ask(tool, **arguments)
        assert reply.status == 200, reply.body
        return reply.json["data"]

    def sql(self, sql: str, token: str | None = TOKEN, **arguments: Any) -> Reply:
        return self.call(
            self.url("/api/v2/sql"), json.dumps({"sql": sql, **arguments}).encode(), token
        )

    def get(
        self, path: str, token: str | None = TOKEN, headers: Mapping[str, str] | None = None
    ) -> Reply:
        return self.call(self.url(path), None, token, headers)

    def call(
        self,
        url: str,
        body: bytes | None,
        token: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Reply:
        request = urllib.request.Request(url, body, dict(headers or {}))
        if token is not None:
            request.add_header("Authorization", f"Bearer {token}")
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE_S) as reply:
                return Reply(reply.status, dict(reply.headers), reply.read())
        except urllib.error.HTTPError as error:
            with error:
                return Reply(error.code, dict(error.headers), error.read())

    def __enter__(self) -> Self:
        self._thread.start()
        self.run(self.service.start())
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        self.run(self.service.stop())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()
