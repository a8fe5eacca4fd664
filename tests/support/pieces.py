"""A server whose HTTP reply arrives in pieces, as it does over a slow or busy network."""

import asyncio
import contextlib
from collections.abc import AsyncIterator


@contextlib.asynccontextmanager
async def replying_in_pieces(*pieces: bytes) -> AsyncIterator[str]:
    """Answer one request with a 200 whose body is sent piece by piece; yields host and port."""
    done = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        size = sum(map(len, pieces))
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {size}\r\nConnection: close\r\n\r\n"
        try:
            for piece in (head.encode(), *pieces):
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0.05)  # so that the client sees each piece alone
        except ConnectionError:
            pass  # the client has read enough
        finally:
            writer.close()
            done.set()

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    host, port = server.sockets[0].getsockname()
    try:
        yield f"{host}:{port}"
    finally:
        server.close()
        async with asyncio.timeout(5):
            await done.wait()
