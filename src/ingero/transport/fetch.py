"""Download of one document over HTTPS on every redirect, with limits on size and time."""

import ssl

import aiohttp
from yarl import URL

from ingero.errors import AuthError, TooLarge, Unavailable
from ingero.transport.bounded import read_reply_body
from ingero.transport.connect import plain_reason

MAX_REDIRECTS = 10


async def fetch_https(
    url: str, *, timeout_s: float, max_bytes: int, context: ssl.SSLContext | None
) -> bytes:
    """Return the body of a 200 reply; raise before connecting to a URL that is not https."""
    timeout = aiohttp.ClientTimeout(total=timeout_s)
    connector = aiohttp.TCPConnector(ssl=context if context is not None else True)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        for _ in range(MAX_REDIRECTS + 1):
            if not url.startswith("https://"):
                raise AuthError(
                    f"{url!r} is not an https address; prices are only fetched over TLS"
                )
            try:
                async with session.get(url, allow_redirects=False) as reply:
                    if reply.status in (301, 302, 303, 307, 308):
                        url = str(reply.url.join(URL(reply.headers.get("Location", ""))))
                        continue
                    if reply.status != 200:
                        raise Unavailable(f"{url} answered {reply.status}")
                    return await read_reply_body(reply, max_bytes)
            except TooLarge as error:
                raise TooLarge(f"{url}: {error}") from None
            except (TimeoutError, aiohttp.ClientError, OSError, ValueError) as error:
                raise Unavailable(f"cannot fetch {url}: {plain_reason(error)}") from None
    raise Unavailable(f"{url}: more than {MAX_REDIRECTS} redirects")
