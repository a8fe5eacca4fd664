"""A client of Echo's tools: one connection per question, errors that name the next step."""

import asyncio
import http.client
import json
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from ingero.contract.api_paths import ECHO_TOOL
from ingero.errors import AuthError, Unavailable
from ingero.transport.bearer import authorization
from ingero.transport.bounded import read_response_body
from ingero.transport.connect import connection_to, failure_text
from ingero.transport.tls import ClientTls
from ingero.transport.tools.tool import Tool, ToolRefused

TIMEOUT_S: Final = 30.0
MAX_ANSWER_BYTES: Final = 32 << 20


@dataclass(frozen=True, slots=True)
class EchoClient:
    """The address of an Echo, and the token and authority for it."""

    url: str
    token: str | None = None
    ca: Path | None = None

    def ask(self, tool: str, arguments: dict[str, Any]) -> Any:
        """Return the data of an answer; raise ToolRefused with Echo's reason."""
        connection = connection_to(
            self.url,
            ClientTls(ca=self.ca),
            http_port=80,
            https_port=443,
            timeout_s=TIMEOUT_S,
            example="https://host:8081",
        )
        headers = {"Content-Type": "application/json"} | authorization(self.token)
        try:
            connection.request(
                "POST", ECHO_TOOL.format(name=tool), json.dumps(arguments).encode(), headers
            )
            reply = connection.getresponse()
            body = read_response_body(reply, MAX_ANSWER_BYTES)
        except ssl.SSLCertVerificationError as error:
            hint = "name its authority with --ca-cert or INGERO_ECHO_CA"
            raise AuthError(
                f"the certificate of {self.url} is not trusted ({error.verify_message}); {hint}"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            why = failure_text(self.url, error, "is `ingero-echo serve` running?")
            raise Unavailable(f"no Echo answers at {self.url}: {why}") from None
        finally:
            connection.close()
        return _data(self.url, reply, body)


def _data(url: str, reply: http.client.HTTPResponse, body: bytes) -> Any:
    if reply.status == 401:
        raise AuthError(
            f"{url} wants another bearer token; give it with --token-file or INGERO_ECHO_TOKEN"
        )
    try:
        document = json.loads(body)
        if reply.status == 200:
            return document["data"]
        code, message = document["error"]["code"], document["error"]["message"]
    except (ValueError, LookupError, TypeError, RecursionError):
        beginning = body[:200].decode(errors="replace").strip()
        raise Unavailable(
            f"{url} answered {reply.status}, but not like Echo's API: {beginning}"
        ) from None
    after = reply.headers.get("Retry-After", "")
    raise ToolRefused(code, message, reply.status, int(after) if after.isdigit() else None)


def remote(tool: Tool[Any]) -> Tool[EchoClient]:
    """Return the tool that sends the same question to the Echo of a client."""

    async def answer(client: EchoClient, question: msgspec.Struct) -> Any:
        arguments = {
            name: value
            for name, value in msgspec.to_builtins(question).items()
            if value is not None
        }
        return msgspec.convert(
            await asyncio.to_thread(client.ask, tool.name, arguments), tool.output
        )

    answer.__doc__ = tool.description
    return Tool(tool.name, tool.input, tool.output, answer)
