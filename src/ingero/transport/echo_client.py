"""Asking a running Echo from this side of the wire: one connection per question, errors that say what to do."""

import asyncio
import http.client
import json
import ssl
import urllib.parse
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from ingero.errors import AuthError, ConfigError, Unavailable
from ingero.transport.tls import ClientTls, client_context
from ingero.transport.tools import Tool, ToolRefused

TIMEOUT_S: Final = 30.0
MAX_ANSWER_BYTES: Final = 32 << 20


@dataclass(frozen=True, slots=True)
class EchoClient:
    """Where Echo is and how to speak to it."""

    url: str
    token: str | None = None
    ca: Path | None = None

    def ask(self, tool: str, arguments: dict[str, Any]) -> Any:
        """The data of an answer; raises ToolRefused with what Echo said."""
        connection = self._connect()
        headers = {"Content-Type": "application/json"}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        try:
            connection.request("POST", f"/api/v2/tools/{tool}", json.dumps(arguments).encode(), headers)
            reply = connection.getresponse()
            body = reply.read(MAX_ANSWER_BYTES)
        except ssl.SSLCertVerificationError as error:
            hint = "name its authority with --ca-cert or INGERO_ECHO_CA"
            raise AuthError(f"the certificate of {self.url} is not trusted ({error.verify_message}); {hint}") from None
        except (OSError, http.client.HTTPException) as error:
            raise Unavailable(f"no Echo answers at {self.url}: {error}; is `ingero-echo serve` running?") from None
        finally:
            connection.close()
        return _data(self.url, reply, body)

    def _connect(self) -> http.client.HTTPConnection:
        parts = urllib.parse.urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(f"{self.url!r} is not an address of Echo; write https://host:8081")
        if parts.scheme == "http":
            return http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=TIMEOUT_S)
        context = client_context(ClientTls(ca=self.ca))
        return http.client.HTTPSConnection(parts.hostname, parts.port or 443, timeout=TIMEOUT_S, context=context)


def _data(url: str, reply: http.client.HTTPResponse, body: bytes) -> Any:
    try:
        document = json.loads(body)
    except ValueError:
        raise Unavailable(f"{url} answered {reply.status} without JSON: is this Echo's API?") from None
    if reply.status == 401:
        raise AuthError(f"{url} wants another bearer token; give it with --token-file or INGERO_ECHO_TOKEN")
    if reply.status != 200:
        error = document.get("error", {})
        after = reply.headers.get("Retry-After", "")
        retry_after_s = int(after) if after.isdigit() else None
        raise ToolRefused(
            error.get("code", "refused"), error.get("message", str(reply.status)), reply.status, retry_after_s
        )
    return document["data"]


def remote(tool: Tool[Any]) -> Tool[EchoClient]:
    """The same question, answered by the Echo behind a client."""

    async def answer(client: EchoClient, question: msgspec.Struct) -> Any:
        arguments = {name: value for name, value in msgspec.to_builtins(question).items() if value is not None}
        return msgspec.convert(await asyncio.to_thread(client.ask, tool.name, arguments), tool.output)

    answer.__doc__ = tool.description
    return Tool(tool.name, tool.input, tool.output, answer)
