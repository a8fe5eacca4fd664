"""Log lines of every service: time, level, event name, then its fields as key=value."""

import json
import logging
import sys
import time

_PLAIN = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class FieldFormatter(logging.Formatter):
    """`2026-11-15T02:32:37.298Z INFO straggler_raised score=0.58 mode=fleet`."""

    def format(self, record: logging.LogRecord) -> str:
        at = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        fields = (f"{key}={_value(value)}" for key, value in vars(record).items() if key not in _PLAIN)
        line = " ".join([f"{at}.{int(record.msecs):03d}Z", record.levelname, record.getMessage(), *fields])
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _value(value: object) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else "-" if value is None else str(value)
    return text if text and text.isprintable() and not set(text) & set(' "=') else json.dumps(text)


def set_up_logging(level: str = "info") -> None:
    """Write to standard error; standard output belongs to results."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(FieldFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for chatty in ("asyncio", "aiohttp", "mcp"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    logging.getLogger("uvicorn").setLevel(logging.ERROR)  # who sends garbage must not fill the log; replies are counted
