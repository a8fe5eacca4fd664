"""The reader of plain pushes: compiled against pure code, and both against httptools."""

import httptools

from ingero.contract.push.segment import decode_segment, decode_segment_purely

HEAD = b"POST /v1/metrics HTTP/1.1\r\nContent-Type: application/json\r\n"


class _Seen:
    """What httptools makes of a segment."""

    def __init__(self) -> None:
        self.headers: list[tuple[bytes, bytes]] = []
        self.url, self.body, self.complete = b"", b"", 0

    def on_url(self, url: bytes) -> None:
        self.url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value))

    def on_body(self, body: bytes) -> None:
        self.body += body

    def on_message_complete(self) -> None:
        self.complete += 1


def fuzz(data: bytes) -> None:
    """A segment that is taken for a plain push is exactly that to an HTTP parser."""
    for segment in (data, HEAD + data):
        plain = decode_segment(segment)
        assert plain == decode_segment_purely(segment)
        if plain is None:
            continue
        seen = _Seen()
        parser = httptools.HttpRequestParser(seen)
        parser.feed_data(segment)
        assert (seen.complete, parser.get_method()) == (1, b"POST")
        assert seen.body == plain[4]
        assert seen.url.partition(b"?")[2] == plain[1]
        assert (dict(seen.headers).get(b"authorization") or None) == (plain[3] or None)
